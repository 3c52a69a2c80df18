"""The job of a chunk. It imports next to nothing before its turn to start, see jobs.starting."""

import argparse
import resource
from pathlib import Path

from workflow_scripts.jobs import run_job, starting, timed

OPEN_FILES = 65536  # more than any server grants seats


def allow_open_files() -> None:
    """Let this process open as many files as it may: one is a connection for each seat, and 1,024 is what is usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.completions", description="Answer one chunk of prompts with the target model."
    )
    parser.add_argument("sidecar", type=Path, help="results/RUN/completions/CHUNK.json, the last file to be written")
    sidecar: Path = parser.parse_args().sidecar
    folder = sidecar.parents[1]
    allow_open_files()
    with starting(folder / "servers"):
        from workflow_scripts.completions.generate import generate
        from workflow_scripts.run import Run
    with timed(folder, "completions") as times:
        times["tokens"] = generate(Run.holding(sidecar), sidecar.stem)


if __name__ == "__main__":
    run_job(main)

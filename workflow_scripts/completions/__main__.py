"""The job of a chunk. It imports next to nothing before its turn to start, see jobs.starting."""

import argparse
from pathlib import Path

from workflow_scripts.jobs import run_job, starting, timed


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.completions", description="Answer one chunk of prompts with the target model."
    )
    parser.add_argument("sidecar", type=Path, help="results/RUN/completions/CHUNK.json, the last file to be written")
    sidecar: Path = parser.parse_args().sidecar
    folder = sidecar.parents[1]
    with starting(folder / "servers"):
        from workflow_scripts.completions.generate import generate
        from workflow_scripts.run import Run
    with timed(folder, "completions") as times:
        times["tokens"] = generate(Run.holding(sidecar), sidecar.stem)


if __name__ == "__main__":
    run_job(main)

"""`snakemake --cores all doctor`: everything that the run still needs, looked at; nothing is made.

In comes RUN/doctor.yaml, the config as it is now; out go RUN/doctor.txt and RUN/doctor.json. The job fails where an
error was found.
"""

import argparse
import time
from pathlib import Path

from workflow_scripts import config, files
from workflow_scripts.doctor.examine import Needs, examine
from workflow_scripts.doctor.findings import lines, to_json
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say
from workflow_scripts.run import Run


def main() -> None:
    """The job."""
    parser = argparse.ArgumentParser(description="Look at everything that a run needs.")
    parser.add_argument("log", type=Path, help="results/RUN/logs/doctor.log")
    folder = parser.parse_args().log.absolute().parents[1]
    path = folder / "doctor.yaml"
    began = time.monotonic()
    run = Run(folder, config.parse(config.load_yaml(path), str(path)))
    found = examine(run, Needs.left(run), brief=False)
    said = lines(found)
    files.write_bytes(folder / "doctor.txt", "".join(f"{line}\n" for line in said).encode())
    files.write_json(folder / "doctor.json", to_json(run.name, found))
    if any(finding.severity == "error" for finding in found):
        raise PlainError("\n".join(["the doctor found:", *said, f"All of it: {folder / 'doctor.json'}"]))
    for line in said:
        say(line)
    say(f"doctor: nothing is in the way of {run.name} ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    run_job(main)

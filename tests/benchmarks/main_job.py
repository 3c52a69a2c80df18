"""Seconds of the main job on a clean clone: first run from an empty cache, the same with a warm one, the second run.

`python tests/benchmarks/main_job.py`. Downloads are in the first figure; stages are those of summary.json.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workflow_scripts import files

ROOT = Path(__file__).parents[2]


def run(clone: Path, home: Path) -> float:
    """Seconds of the one line."""
    start = time.monotonic()
    argv = [sys.executable, "-m", "snakemake", "--cores", "all"]
    subprocess.run(argv, cwd=clone, env=os.environ | {"DRAFTMILL_HOME": str(home)}, check=True, capture_output=True)
    return time.monotonic() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        for what in ("empty cache", "warm cache"):
            clone = Path(folder) / what.replace(" ", "-")
            subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
            seconds = run(clone, home)
            summary = files.read_json(clone / "results" / "demo" / "summary.json")
            stages = ", ".join(f"{stage} {value:.0f}" for stage, value in summary["seconds"].items())
            print(f"first run, {what}: {seconds:.0f} s ({stages}); {summary['tokens_per_second']} tokens/s", flush=True)
            print(f"second run, {what}: {run(clone, home):.1f} s", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()

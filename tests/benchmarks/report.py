"""A report over many completions: seconds, memory, size. `python -m tests.benchmarks.report` says it as a table."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from tests.standin.made_run import make
from workflow_scripts.files import lines_zst

ROOT = Path(__file__).parents[2]


def measure(folder: Path, prompts: int, chunks: int, ids: int) -> None:
    run = make(folder, prompts, chunks, ids)
    row = max(map(len, islice(lines_zst(run.completions("00000")), 100)))
    path = run.folder / "report.html"
    argv = [sys.executable, "-m", "workflow_scripts.reporting.report", str(path)]
    began = time.monotonic()
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    assert status == 0, status
    print("| completions | chunks | longest row | seconds | CPU seconds | peak memory | report |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {prompts:,} | {chunks:,} | {row / 1e3:.0f} kB | {seconds:.1f} | {used.ru_utime + used.ru_stime:.1f} "
        f"| {used.ru_maxrss / 1024:,.0f} MB | {path.stat().st_size / 1e6:.1f} MB |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument(
        "--ids", type=int, default=1500, help="token ids that are stored of a prompt or an answer at most"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), args.prompts, args.chunks, args.ids)

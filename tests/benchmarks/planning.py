"""Seconds and memory of a dry run by number of chunks: `python tests/benchmarks/planning.py [CHUNKS ...]`.

Everything is on: training, publishing, priorities. Each figure is the median of three runs of `snakemake -n -q`.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = """
name: planning
sources:
  a: {{path: a.jsonl, shape: prompt_response}}
chunks: {{count: {chunks}}}
model: {{path: org/model}}
publish: {{store: s3, bucket: bucket, prefix: planning/}}
"""


def dry_run(folder: Path, chunks: int) -> float:
    """Seconds of one dry run."""
    (folder / "my.yaml").write_text(CONFIG.format(chunks=chunks))
    (folder / "a.jsonl").write_text('{"prompt": "a?"}\n')
    argv = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-n", "-q", "--configfile", "my.yaml"]
    start = time.monotonic()
    subprocess.run(argv, cwd=folder, env=os.environ | {"DRAFTMILL_HOME": str(folder)}, check=True, capture_output=True)
    return time.monotonic() - start


def main() -> None:
    for chunks in [int(argument) for argument in sys.argv[1:]] or [100, 1_000, 5_000]:
        with tempfile.TemporaryDirectory() as folder:
            seconds = statistics.median(dry_run(Path(folder), chunks) for _ in range(3))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{chunks:>6} chunks: {seconds:5.1f} s, {peak:,.0f} MB", flush=True)


if __name__ == "__main__":
    main()

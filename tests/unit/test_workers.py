"""Worker processes give what one process gives, and die with it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflow_scripts import config, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import json_rows, parquet_rows, workers
from workflow_scripts.sources.conversion import Conversion
from workflow_scripts.sources.normalize import SourceFile, build_shard
from workflow_scripts.sources.readers import Batch, NamedFile, read_batches

ROOT = Path(__file__).parents[2]
CONVERSION = Conversion("prompt_response", {"prompt": ("prompt",), "id": ()}, {}, set(), None)


def write(path: Path, count: int) -> Path:
    rows = [{"prompt": f"Q{n}" if n % 7 else None, "lang": "en", "keep": n % 5 > 0} for n in range(count)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{torn")
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_the_shard_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (json_rows, parquet_rows):
        monkeypatch.setattr(module, "BATCH_ROWS", 10)
    file = SourceFile.of(write(tmp_path / name, 333))
    made = []
    for count in (0, 1, 3):
        folder = tmp_path / f"shard-{count}"
        source = config.Source.model_validate({"path": "x", "where": {"keep": True}, "sample": 300})
        stats = build_shard("demo", source, [file], folder, processes=count)
        data = [(folder / part).read_bytes() for part in ("prompts.parquet", "rejects.jsonl.zst")]
        made.append((data, {**stats, "seconds": 0}))
    assert made[0] == made[1] == made[2]
    assert made[0][1]["prompts"] > 100 and made[0][1]["rejects"]["filtered"] > 30


def batches(tmp_path: Path) -> Iterator[Batch]:
    file = write(tmp_path / "x.jsonl", 20)
    while True:
        yield from read_batches([NamedFile(file, file.name)])


def test_a_killed_worker_is_said(tmp_path: Path) -> None:
    converted = workers.convert(batches(tmp_path), CONVERSION, 2)
    next(converted)
    victim = processes.children(running=workers.__name__)[0]
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(PlainError, match="exit code -9"):
        for _ in converted:
            pass
    assert processes.children(running=workers.__name__) == []


def test_workers_end_with_the_reading(tmp_path: Path) -> None:
    converted = workers.convert(batches(tmp_path), CONVERSION, 2)
    next(converted)
    assert len(processes.children(running=workers.__name__)) == 2
    converted.close()
    assert processes.children(running=workers.__name__) == []


ENDLESS = """
import sys
from pathlib import Path
from tests.unit.test_workers import CONVERSION, batches, processes, workers
for _ in workers.convert(batches(Path(sys.argv[1])), CONVERSION, 2):
    print(*processes.children(running=workers.__name__), flush=True)
"""


def test_workers_die_with_a_killed_job(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        ids = [processes.ProcessId.of(int(pid)) for pid in job.stdout.readline().split()]
        threading.Thread(target=job.stdout.read, daemon=True).start()
        job.kill()
    deadline = time.monotonic() + 60
    assert len(ids) == 2
    while any(one is not None and one.alive() for one in ids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_threads_go_by_what_is_known_of_the_files() -> None:
    assert workers.threads({"files": [{"bytes": 1000}, {"bytes": 1000}]}) == 1
    assert workers.threads({"files": [{"bytes": 40 << 20}, {"bytes": 40 << 20}]}) == workers.threads(None) > 1

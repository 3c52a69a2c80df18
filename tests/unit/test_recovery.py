"""What a start puts in order: leftovers of writers, dates in the future, a clock that is set back."""

import os
import threading
import time
from pathlib import Path

import pytest

from workflow_scripts import files, recovery
from workflow_scripts.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "results" / "small-1234abcd"
    for name in ("setup/model.json", "prompts/split.json", "completions/00000.json", "manifest.parquet", "run.yaml"):
        files.write_bytes(folder / name, b"{}")
    return Run(folder)


def test_what_killed_writers_left_is_removed_and_what_is_written_now_stays(run: Run) -> None:
    left = [
        run.folder / ".summary.json.tmp",
        run.folder / "completions" / ".00001.jsonl.zst.tmp",
        run.folder / "training" / "abc" / ".train-00000.parquet.tmp",
        run.results / "sources" / ".chats-1234.tmp" / "prompts.parquet",
    ]
    for path in left:
        files.write_bytes(path, b"half")
    with files.atomic_path(run.completions("00002")) as written:
        written.write_bytes(b"half")
        recovery.sweep(run)
        assert written.read_bytes() == b"half"
    assert [path for path in left if path.exists()] == []
    assert not left[-1].parent.exists()
    assert run.completions("00002").read_bytes() == b"half" and run.sidecar("00000").exists()


def test_files_dated_in_the_future_are_dated_now(run: Run) -> None:
    now = recovery.file_system_now(run)
    assert not list(run.folder.glob(".clock")) and abs(now / 1e9 - time.time()) < 60
    old = run.sidecar("00000")
    os.utime(old, ns=(now - 10**9, now - 10**9))
    for path in (run.manifest, run.folder / "setup" / "model.json"):
        os.utime(path, ns=(now + 3600 * 10**9, now + 3600 * 10**9))
    assert recovery.redate(run, now) == 2
    assert run.manifest.stat().st_mtime_ns == now and old.stat().st_mtime_ns == now - 10**9
    assert recovery.redate(run, now) == 0


def test_a_clock_set_back_is_noticed_each_time_and_one_set_forward_is_not() -> None:
    ahead = [0.0, 3600.0, 3590.0, 3589.5, -10.0]  # of the true time, at each look
    looks, noticed, over = 0, list[int](), threading.Event()

    def wall() -> float:
        nonlocal looks
        looks += 1
        if looks > len(ahead):
            over.set()
            threading.Event().wait()
        return time.monotonic() + ahead[looks - 1]

    recovery.on_clock_set_back(lambda: noticed.append(looks), wall, every=0.0)
    assert over.wait(60)
    assert noticed == [3, 5]

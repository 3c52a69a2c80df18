"""Servers that are old or grew are ended between chunks, one at a time, when nobody needs them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import config, files
from workflow_scripts.processes import ProcessId
from workflow_scripts.run import Run
from workflow_scripts.serving import recycle, supervisor
from workflow_scripts.serving.leases import acquire
from workflow_scripts.serving.supervisor import State, folder_id


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    stopped: list[Path] = []
    monkeypatch.setattr(supervisor, "stop", stopped.append)
    return stopped


def a_run(folder: Path, **limits: Any) -> Run:
    values = {"name": "a", "sources": {"s": {"path": "x"}}, "model": {"path": "m"}, "limits": limits}
    run = Run(folder / "a-1", config.parse(values, "x"))
    run.server(0).mkdir(parents=True, exist_ok=True)
    here = ProcessId.here()
    state = State("server 0", "ready", 1, here, None, here, None, 1.0, {}, folder=folder_id(run.server(0)))
    files.write_json(run.server(0) / "state.json", state.to_json())
    return run


def recycled(run: Run) -> None:
    with acquire(run.servers, 1, 2) as lease:
        recycle.recycle_if_due(run, lease)


def test_off_by_default(tmp_path: Path, ended: list[Path]) -> None:
    recycled(a_run(tmp_path))
    assert ended == []


def test_by_age(tmp_path: Path, ended: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycle, "age_seconds", lambda process: 7200.0)
    recycled(a_run(tmp_path, recycle_hours=3))
    assert ended == []
    recycled(run := a_run(tmp_path, recycle_hours=1.5))
    assert ended == [run.server(0)]


def test_by_memory(tmp_path: Path, ended: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter([1 * recycle.GIGABYTE, 1 * recycle.GIGABYTE, 3 * recycle.GIGABYTE])
    monkeypatch.setattr(recycle, "_memory", lambda session: next(held))
    run = a_run(tmp_path, recycle_gigabytes=1.5)
    recycled(run)  # it notes what the server held at first, and sees that it is no more
    assert ended == []
    recycled(run)
    assert ended == [run.server(0)]


def test_where_another_server_is_recycled_this_one_waits_for_its_next_chunk(
    tmp_path: Path, ended: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recycle, "age_seconds", lambda process: 7200.0)
    run = a_run(tmp_path, recycle_hours=1)
    with acquire(run.servers, 2, 1) as other, other.alone():
        pass
    with acquire(run.servers, 1, 2) as one, one.alone():
        recycled(run)
        assert ended == []
    recycled(run)
    assert ended == [run.server(0)]


def test_the_age_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        young = ProcessId.of(process.pid)
        assert young is not None
        assert 0 <= recycle.age_seconds(young) < 60 < recycle.age_seconds(young.__class__("", "", 1, 0))
        process.communicate(b"\n")

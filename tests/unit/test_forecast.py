"""The disk a run can need, against the room there."""

from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import config, files
from workflow_scripts.reporting import forecast
from workflow_scripts.run import Run


def run_with(tmp_path: Path, **changes: Any) -> Run:
    source = {"path": "a.jsonl", "shape": "messages", "take": 100}
    values = {"name": "mine", "sources": {"a": source}, "model": {"path": "m"}, "chunks": {"count": 4}, **changes}
    return Run(tmp_path / "results" / "mine-1", config.parse(values, "c"))


def test_answers_left_are_those_of_unfinished_chunks(tmp_path: Path) -> None:
    run = run_with(tmp_path, sampling={"n": 2})
    assert forecast.answers_left(run) == 200
    files.write_json(run.sidecar("00000"), {})
    assert forecast.answers_left(run) == 150
    files.write_json(run.manifest_json, {"taken": 40})
    assert forecast.answers_left(run) == 60


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path) -> None:
    run = run_with(tmp_path, sources={"a": {"path": "a.jsonl", "shape": "messages"}})
    assert forecast.answers_left(run) is None and forecast.disk_line(run) is None


def test_a_disk_that_may_fill_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 6_124_799}))
    line = forecast.disk_line(run)
    assert line is not None and line.startswith("disk: 100 answers of up to 4,096 tokens can take 0.0 GB")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 6_124_800}))
    assert forecast.disk_line(run) is None

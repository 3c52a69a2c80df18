"""What the jobs of a run count together: alarms, and what ends a run."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.test_completions import prompt
from workflow_scripts import config, files
from workflow_scripts.completions.health import Health, expected_answers
from workflow_scripts.records import TurnClass
from workflow_scripts.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    values = {"name": "a", "sources": {"s": {"path": "x"}}, "model": {"path": "m"}, "sampling": {"n": 2}}
    files.write_json(tmp_path / "a-1" / "manifest.json", {"taken": 1000})
    (tmp_path / "a-1" / "servers").mkdir()
    return Run(tmp_path / "a-1", config.parse(values, "x"))


def count(health: Health, classes: dict[TurnClass, int], server: str = "server 0") -> None:
    for kind, times in classes.items():
        for _ in range(times):
            usage = {"prompt_tokens": 3, "completion_tokens": 2}
            turn: Any = {"class": kind, "server": server, "usage": usage}
            completion: Any = {**prompt(0, "Q"), "sample": 0, "turns": [turn], "ended": "complete"}
            health.answered(completion)


def fail(health: Health, kind: str, times: int) -> None:
    for _ in range(times):
        health.failed(
            {"prompt_id": "x", "sample": 0, "source": "s", "class": kind, "reason": "", "final": True, "attempts": 1}
        )


def alarms(run: Run) -> list[str]:
    path = run.folder / "alarms.jsonl"
    return [orjson.loads(line)["alarm"] for line in path.read_bytes().splitlines()] if path.exists() else []


def test_answers_are_owed_per_sample(run: Run) -> None:
    assert expected_answers(run) == 2000


def test_a_rising_share_on_one_server_is_an_alarm_once(run: Run) -> None:
    for _ in range(10):
        count(job := Health(run, 2000), {"complete": 70, "cut_in_thinking": 30}, "server 0")
        count(job, {"complete": 70, "cut_in_thinking": 30}, "server 1")
        assert job.flush() is None
    assert alarms(run) == []  # a share that is high everywhere and always is the model's
    for _ in range(3):
        count(job := Health(run, 2000), {"cut_in_thinking": 100}, "server 1")
        assert job.flush() is None
    assert alarms(run) == ["server 1: more and more turns are cut_in_thinking"]


def test_turns_that_are_empty_or_repeat_themselves_end_the_run(run: Run) -> None:
    one, other = Health(run, 2000), Health(run, 2000)
    count(one, {"repetition": 60, "empty": 39})
    assert one.flush() is None  # too few to tell
    count(other, {"complete": 99, "empty": 30})
    stop = other.flush()
    assert stop is not None and stop.startswith("server 0: 57% of its last 228 turns are empty or repeat themselves")
    assert one.flush() == stop and alarms(run) == [stop]  # the other jobs learn of it


@pytest.mark.parametrize(
    ("answered", "failed", "stops"),
    [
        (0, {"server_error": 49}, None),
        (
            0,
            {"server_error": 50},
            "0 answers and 50 failures in this start (50 x server_error): the servers don't work",
        ),
        (0, {"too_long": 300}, None),  # all that is left of a run that was stopped, perhaps
        (1000, {"server_error": 300, "poison": 1}, None),
        (
            1000,
            {"too_long": 401},
            "401 of 2,000 answers failed in this start (401 x too_long), more than limits.failed",
        ),
    ],
)
def test_failures(run: Run, answered: int, failed: dict[str, int], stops: str | None) -> None:
    job = Health(run, 2000)
    count(job, {"complete": answered})
    for kind, times in failed.items():
        fail(job, kind, times)
    stop = job.flush()
    assert stop == stops if stops is None else stop is not None and stop.startswith(stops)


def test_another_start_begins_anew(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_RUN_PROCESS", "host boot 1 1")
    fail(job := Health(run, 2000), "server_error", 60)
    assert job.flush() is not None
    monkeypatch.setenv("DRAFTMILL_RUN_PROCESS", "host boot 2 2")
    assert Health(run, 2000).flush() is None

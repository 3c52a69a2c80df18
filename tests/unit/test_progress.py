"""What a run made over time, as its jobs write it down together."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_completions import prompt
from workflow_scripts import config, files
from workflow_scripts.completions import health as healths
from workflow_scripts.completions import progress
from workflow_scripts.completions.health import Health
from workflow_scripts.run import Run
from workflow_scripts.serving.endpoints import Endpoint
from workflow_scripts.serving.launch import Granted
from workflow_scripts.serving.leases import acquire


@pytest.fixture
def run(tmp_path: Path) -> Run:
    values = {"name": "a", "sources": {"s": {"path": "x"}}, "model": {"path": "m"}, "chunks": {"count": 2}}
    (tmp_path / "a-1" / "servers").mkdir(parents=True)
    return Run(tmp_path / "a-1", config.parse(values, "x"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that is told: its only item."""
    now = [1000.0]
    monkeypatch.setattr("workflow_scripts.completions.progress.time.time", lambda: now[0])
    return now


def endpoint(start: int = 1) -> Endpoint:
    granted = Granted(8, 32768, 4090, 4096, "0.5.23", "m", "m", {}, {})
    return Endpoint("server 0", "http://127.0.0.1:1", None, granted, {}, start=start)


def answer(health: Health, tokens: int) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": tokens}
    turn: Any = {"class": "complete", "server": "server 0", "usage": usage}
    completion: Any = {**prompt(0, "Q"), "sample": 0, "turns": [turn], "ended": "complete"}
    health.answered(completion)


def lines(run: Run) -> list[dict[str, Any]]:
    path = run.folder / "progress.jsonl"
    return progress.parse(path.read_bytes()) if path.exists() else []


def test_two_jobs_write_one_line(run: Run, clock: list[float]) -> None:
    one, other = Health(run, 100), Health(run, 100)
    one.connected(endpoint(), 0)
    other.connected(endpoint(), 0)
    for job, tokens in ((one, 5), (other, 7)):
        answer(job, tokens)
        job.flush()
    assert lines(run) == []
    with acquire(run.servers, 1, 2) as lease:
        lease.flying(3)
        clock[0] += 10
        one.flush()
        other.flush()
    made = {"turns": 2, "prompt_tokens": 6, "output_tokens": 12}
    server = {"number": 0, "start": 1, "seats": 8, "in_flight": 3, **made}
    at = {"at": 1010.0, "seconds": 10.0}
    assert lines(run) == [
        {**at, "servers": {"server 0": server}, "deaths": [], "classes": {"complete": 2}, "failed": {}}
    ]


def test_silence_is_written_down_too(run: Run, clock: list[float]) -> None:
    job = Health(run, 100)
    job.connected(endpoint(), 0)
    for _ in range(3):
        clock[0] += 10
        job.flush()
    assert [line["servers"]["server 0"]["output_tokens"] for line in lines(run)] == [0, 0]


def test_the_last_word_of_a_job_is_written(run: Run, clock: list[float]) -> None:
    job = Health(run, 100)
    job.connected(endpoint(), 0)
    answer(job, 5)
    clock[0] += 1
    job.flush(last=True)
    assert [line["servers"]["server 0"]["output_tokens"] for line in lines(run)] == [5]


def test_a_death_is_written_once(run: Run, clock: list[float]) -> None:
    job = Health(run, 100)
    job.connected(endpoint(), 0)
    job.flush()
    here = files.read_json(run.servers / "health.json")["run"]
    death = {"at": 1004.0, "start": 1, "reason": "out of memory", "kind": "work"}
    files.write_json(run.server(0) / "standing.json", {"run": here, "deaths": [death], "out": None})
    for _ in range(2):
        clock[0] += 10
        job.connected(endpoint(start=2), 0)
        job.flush()
    told = [{"server": "server 0", "at": 1004.0, "start": 1, "reason": "out of memory"}]
    assert [line["deaths"] for line in lines(run)] == [told, []]
    assert [line["servers"]["server 0"]["start"] for line in lines(run)] == [2, 2]


def test_the_terminal_is_told_calmly(run: Run, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    job = Health(run, 100)
    job.connected(endpoint(), 0)
    for _ in range(24 * 360):
        clock[0] += 10
        answer(job, 50)
        job.flush()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "7 answers in this start, 6 tokens/s of late; 0 of 2 chunks are finished"
    assert 100 < len(said) < 200  # a day


def test_lines_that_were_cut_short_are_left_out(run: Run, clock: list[float]) -> None:
    job = Health(run, 100)
    job.connected(endpoint(), 0)
    job.flush(last=True)
    path = run.folder / "progress.jsonl"
    path.write_bytes(path.read_bytes() + b'{"at": 1, "se\n[]\n{}\n')
    assert len(lines(run)) == 1


def test_nothing_of_a_server_is_in_flight_before_it_was_leased(tmp_path: Path) -> None:
    assert progress.in_flight(tmp_path) == 0


def test_a_dead_holder_has_nothing_in_flight(run: Run) -> None:
    lease = acquire(run.servers, 1, 2)
    lease.flying(5)
    assert progress.in_flight(run.server(0)) == 5
    lease._table[2 * 5 - 5 + 3] += 1  # its start time: that of another process
    assert progress.in_flight(run.server(0)) == 0
    lease.release()


def test_health_keeps_what_is_not_written_yet(run: Run) -> None:
    job = Health(run, 100)
    job.connected(endpoint(), 0)
    answer(job, 5)
    job.flush()
    assert healths._read(run.servers / "health.json")["progress"]["servers"]["server 0"]["output_tokens"] == 5

"""Servers that die, hang, never come up or answer nonsense: the rest goes on, and every prompt is accounted for."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.standin.project import Project
from tests.standin.waiting import until
from workflow_scripts import files


def faults(**what: Any) -> str:
    return json.dumps(what)


def failures(project: Project) -> list[dict[str, Any]]:
    return [row for path in project.made.folder.glob("completions/*.failures.*") for row in files.read_jsonl_zst(path)]


NONSENSE = ("garbage", "blank", "no_choices", "not_json", "wrong_json", "foreign_ids", "abort", "wrong_id")


@pytest.mark.parametrize(
    ("trouble", "starts"),
    [
        pytest.param({"die_after": 12}, 2, id="dead at half"),
        pytest.param({"die_after": 12, "away": 3}, 3, id="dead for three minutes"),
        pytest.param({"load": 5}, 1, id="slow to load"),
        pytest.param({"loud": True}, 1, id="lines of 200 KB, a log of 1 GB"),
        pytest.param({"port_taken": True}, 2, id="port taken"),
        pytest.param({"granted": 2, "delay": 0.2}, 1, id="granted less than asked"),
        pytest.param(dict.fromkeys(NONSENSE, 2), 1, id="nonsense"),
        pytest.param({"next_statuses": [500, 503, 429, 400, 500, 503, 429]}, 1, id="statuses"),
    ],
)
def test_a_server_in_trouble_loses_no_prompt(prepared: Project, trouble: dict[str, Any], starts: int) -> None:
    """Times are a sixtieth of what they would be."""
    prepared.config["limits"] |= {"restart_wait": 0.5}
    result = prepared.finish(STANDIN_FAULTS=faults(**trouble))
    assert "Traceback" not in result.output and prepared.server_starts() >= starts
    refused = trouble.get("next_statuses", []).count(400)
    assert [row["class"] for row in failures(prepared)] == ["refused"] * refused
    assert files.read_json(prepared.made.summary)["completions"] == 24 - refused
    if "granted" in trouble:
        assert prepared.most_in_flight() == 2


def test_poison_is_found_and_the_rest_is_answered(prepared: Project) -> None:
    # Two of them: most likely in different chunks, whose jobs share the server.
    result = prepared.finish(STANDIN_FAULTS=faults(die_on=["Question 7?", "Chat 3?"]))
    assert "Traceback" not in result.output
    failed = failures(prepared)
    assert {row["class"] for row in failed} == {"poison"} and len(failed) == 2
    assert all("at last with nothing else there: it exited with 9" in row["reason"] for row in failed)
    assert files.read_json(prepared.made.summary)["completions"] == 22
    asked = prepared.requests()
    assert all(3 <= asked.count(text) <= 7 for text in ("Question 7?", "Chat 3?"))
    # Those that were beside them were asked again a few times only.
    assert max(asked.count(text) for text in set(asked) - {"Question 7?", "Chat 3?"}) <= 7


def test_one_poison_among_five_thousand(fresh: Project) -> None:
    fresh.write_rows("questions", [{"prompt": f"Question {n}?", "response": ""} for n in range(5000)])
    del fresh.config["sources"]["chats"]
    fresh.config["chunks"] = {"size": 500}
    fresh.config["servers"]["args"]["max-running-requests"] = 64
    fresh.finish(STANDIN_FAULTS=faults(die_on=["Question 2718?"]))
    [failure] = failures(fresh)
    assert failure["class"] == "poison" and files.read_json(fresh.made.summary)["completions"] == 4999
    assert max(Counter(fresh.requests()).values()) <= 12
    assert len(fresh.requests()) < 5000 + 20 * 64


def test_a_server_that_hangs_is_started_anew(prepared: Project) -> None:
    # Each start answers nine requests, and is silent then.
    prepared.config["limits"] |= {"stall": 2, "restarts_per_hour": 20}
    result = prepared.finish(STANDIN_FAULTS=faults(hold_after=9))
    assert "no token in 2 s with" in result.output and prepared.server_starts() >= 3
    assert failures(prepared) == []


def test_a_server_that_never_comes_up_leaves_the_work_to_the_others(prepared: Project) -> None:
    prepared.config["servers"]["count"] = 2
    result = prepared.finish(STANDIN_FAULTS_1=faults(never_up=True))
    assert "server 1 did not start 3 times" in result.output
    assert "RuntimeError: no room for this server here" in result.output
    assert "It goes on with another server" in result.output
    assert set(prepared.requests()) == set(prepared.requests("answered")) and len(prepared.requests()) == 24


def test_where_no_server_comes_up_the_run_ends_with_the_reasons(prepared: Project) -> None:
    prepared.config["servers"]["count"] = 2
    result = prepared.run(STANDIN_FAULTS=faults(never_up=True))
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert "no server is left to answer prompts:" in result.output
    for number in (0, 1):
        assert f"  server {number} did not start 3 times; the last time: server {number} did not start" in result.output
    assert prepared.server_starts() == 6  # not again for each chunk
    prepared.no_process_left()
    prepared.finish()


def test_a_server_that_dies_too_often_is_out_of_use(prepared: Project) -> None:
    prepared.config["servers"] |= {"count": 2, "leases": 1}
    prepared.config["limits"]["restarts_per_hour"] = 1
    result = prepared.finish(STANDIN_FAULTS_0=faults(die_on=["?"]))
    assert "server 0 died 2 times in an hour; the last time: it exited with 9" in result.output
    assert failures(prepared) == []


def test_a_hopeless_run_ends_early(prepared: Project) -> None:
    prepared.write_rows("questions", [{"prompt": f"Question {n}?", "response": ""} for n in range(300)])
    prepared.config["chunks"] = {"count": 12}
    result = prepared.run(STANDIN_FAULTS=faults(status=500))
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert "0 answers and" in result.output and "x server_error): the servers don't work" in result.output
    assert len(prepared.requests()) < 12 * 26 * 8 / 2  # not every prompt, eight times
    prepared.no_process_left()
    prepared.finish()


def test_a_straggler_does_not_hold_up_the_next_chunks(prepared: Project) -> None:
    [first] = [row["messages"][-1]["content"] for row in list(files.read_jsonl_zst(prepared.made.prompts("00000")))[:1]]
    run = prepared.start(STANDIN_FAULTS=faults(slow_on={first: 25}))
    until(lambda: len(prepared.requests("answered")) == 23)
    assert first not in prepared.requests("answered")
    until(lambda: len(list(prepared.made.folder.glob("completions/0????.json"))) == 2)
    assert run.wait().code == 0
    prepared.audit()

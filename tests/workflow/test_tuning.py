"""The target `tune`, and runs that use what it found, against launched stand-ins whose flags decide their speed."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.standin.project import Project
from tests.standin.tuning import told, tunable
from tests.standin.waiting import until
from workflow_scripts import files

CANDIDATES: list[dict[str, Any]] = [
    {"name": "fast", "args": {"schedule-conservativeness": 2.0}},
    {"args": {"max-running-requests": 2}},
    {"name": "nearly", "args": {"page-size": 64}},
    {"name": "wrong", "args": {"attention-backend": "triton", "schedule-conservativeness": 3.0}},
    {"name": "too_big", "args": {"mem-fraction-static": 0.99}},
    {"name": "dies", "args": {"chunked-prefill-size": 1, "schedule-conservativeness": 2.5}},
    {"name": "retracts", "args": {"schedule-conservativeness": 0.4}},
    {"name": "no_such_policy", "args": {"schedule-policy": "whim"}},
]


def test_the_fastest_that_answers_alike_is_found_and_used_in_the_midst_of_a_run(tmp_path: Path) -> None:
    project = tunable(tmp_path / "project", 3000, CANDIDATES, seconds=2, rounds=2)
    project.config["servers"]["count"] = 2
    try:
        assert project.run("prompts").code == 0
        folder = project.made.folder
        first = project.run(f"{folder.relative_to(project.folder)}/completions/00000.json", configfile="my.yaml")
        assert first.code == 0, first.output
        made = project.made.sidecar("00000").read_bytes()
        result = project.run("tune")
        assert result.code == 0, result.output
        project.no_process_left()
        found = told(project)
        rows = {row["name"]: row for row in found["candidates"]}
        assert {name: row["standing"] for name, row in rows.items()} == {
            "as_is": "slower",
            "fast": "best",
            "max-running-requests 2": "slower",
            "nearly": "slower",
            "wrong": "other_answers",
            "too_big": "failed",
            "dies": "failed",
            "retracts": "slower",
            "no_such_policy": "failed",
        }
        assert found["winner"] == {"name": "fast", "args": {"schedule-conservativeness": 2.0}}
        assert 0.5 < found["gain"]["share"] < 1.5
        assert {row["out_of_memory"] for name, row in rows.items() if name in ("too_big", "dies")} == {True}
        assert "died at work" in rows["dies"]["reason"] and "did not start" in rows["too_big"]["reason"]
        assert rows["no_such_policy"]["reason"].startswith(
            "servers.args.schedule-policy: SGLang 0.5.23 knows no 'whim'"
        )
        assert rows["nearly"]["answers"]["near_tie"] > 0 and rows["nearly"]["answers"]["different"] == 0
        assert rows["wrong"]["answers"]["different"] > 0 and "greedy answers are not as_is's" in rows["wrong"]["reason"]
        assert rows["retracts"]["retracted"] > 0 == rows["as_is"]["retracted"]
        assert rows["as_is"]["seats"]["granted"] == 8 and 6 < rows["as_is"]["seats"]["used"] <= 8
        assert {one["server"] for row in rows.values() for one in row["measurements"]} == {"server 0", "server 1"}
        assert not any(one["sample_used_up"] for one in rows["as_is"]["measurements"])
        table = (folder / "tuning.txt").read_text().splitlines()
        assert all(line.rstrip() in result.output for line in table) and "<- best" in "\n".join(table)
        # It is the same run, and goes on by the winner's flags.
        project.config["servers"] |= {"tuned": True, "count": 1}
        after = project.run("completions")
        assert after.code == 0, after.output
        assert project.made.folder == folder and project.made.sidecar("00000").read_bytes() == made
        assert "Chunk 00000" not in after.jobs and after.lines("tuned: the flags of fast ")
        assert "goes without): schedule-conservativeness 2.0" in after.output
        assert "--schedule-conservativeness 2.0" in after.output
    finally:
        project.end_processes()


def test_what_cannot_be_tuned_or_is_not_tuned_is_a_plain_error(fresh: Project) -> None:
    fresh.config["servers"]["tuned"] = True
    plan = fresh.run("-n")
    assert plan.code == 0, plan.output
    result = fresh.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert result.lines("error: servers.tuned is true, and ") and "say `snakemake --cores all tune`" in result.output
    assert not list(fresh.results.glob("*/completions/*")) and fresh.requests() == []
    both = fresh.run("tune", "completions")
    assert both.code != 0 and both.lines("error: tuning has the servers to itself"), both.output
    fresh.config["servers"] = {"urls": ["http://127.0.0.1:9"]}
    elsewhere = fresh.run("tune")
    assert elsewhere.code != 0 and "there is nothing to tune here" in elsewhere.output
    fresh.config["training"]["answers"] = "recorded"
    recorded = fresh.run("tune")
    assert recorded.code != 0 and "no server is asked anything" in recorded.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_tuning_that_is_ended_keeps_what_it_measured_and_the_same_line_does_it_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    slow = [{"name": "slow", "args": {"schedule-conservativeness": 0.9}}]
    project = tunable(tmp_path / "project", 1000, slow, seconds=3, rounds=1)
    try:
        running = project.start("tune")
        until(lambda: "tune: slow on server 0" in running.output and project.made.server(0).joinpath("key").exists())
        if number == signal.SIGINT:
            running.signal_all(number)
        else:
            running.process.send_signal(number)
        assert running.wait().code != 0
        project.no_process_left()
        assert not (project.made.folder / "tuning.json").exists()
        partial = project.made.folder / "tuning.partial.json"
        rows = {row["name"]: row for row in files.read_json(partial)["candidates"]}
        assert rows["as_is"]["tokens_per_second"] > 0 and rows["slow"]["standing"] == "not_measured"
        if number != signal.SIGKILL:
            assert running.output.count("  slow ") == 1 and "tune: cut short; this was measured" in running.output
        project.config["servers"]["tuned"] = True
        unused = project.run()
        assert unused.code != 0 and "tuning.json is not there" in unused.output
        project.config["tune"] |= {"seconds": 1, "candidates": []}
        result = project.run("tune")
        assert result.code == 0 and told(project)["winner"]["name"] == "as_is", result.output
        assert not partial.exists() and not partial.with_suffix(".txt").exists()
        project.no_process_left()
    finally:
        project.end_processes()


def set_standin(project: Project, **more: Any) -> None:
    project.env["STANDIN_TUNE"] = json.dumps(json.loads(project.env["STANDIN_TUNE"]) | more)


def test_a_slow_gpu_and_a_broken_one_are_no_candidates_fault(tmp_path: Path) -> None:
    """`fast` is measured on the slow server in the only round, and no candidate on the broken one."""
    tried = [{"name": "alike", "args": {"page-size": 1}}, {"name": "fast", "args": {"schedule-conservativeness": 1.35}}]
    project = tunable(tmp_path / "project", 2000, tried, seconds=3, rounds=1)
    project.config["servers"]["count"] = 3
    set_standin(project, speeds={"1": 0.6}, broken=["2"])
    try:
        result = project.run("tune")
        assert result.code == 0 and "Traceback" not in result.output, result.output
        found = told(project)
        rows = {row["name"]: row for row in found["candidates"]}
        assert found["winner"]["name"] == "fast", (found, result.output)
        assert [one["server"] for one in rows["fast"]["measurements"]] == ["server 1"]
        slow, middle = found["speed_of_servers"]["server 1"], found["speed_of_servers"]["server 0"]
        assert slow / middle == pytest.approx(0.6, abs=0.1) and found["servers"] == 2
        assert found["gain"]["share"] == pytest.approx(0.35, abs=0.2)
        assert "CUDA out of memory" in found["unusable_servers"]["server 2"]
        text = (project.made.folder / "tuning.txt").read_text()
        assert "note: server 2 could not be used" in text and "servers of another speed" in text
        project.no_process_left()
    finally:
        project.end_processes()


def test_candidates_that_hang_or_fail_prompts_can_not_win_and_harm_nothing(tmp_path: Path) -> None:
    tried = [
        {"name": "hangs", "args": {"chunked-prefill-size": 2, "schedule-conservativeness": 2.0}},
        {"name": "hangs_too", "args": {"chunked-prefill-size": 2, "schedule-conservativeness": 3.0}},
        {"name": "refuses_half", "args": {"max-prefill-tokens": 1, "schedule-conservativeness": 3.0}},
        {"name": "refuses_all", "args": {"max-prefill-tokens": 2, "schedule-conservativeness": 3.0}},
    ]
    project = tunable(tmp_path / "project", 400, tried, seconds=2, rounds=1)
    project.config["limits"] |= {"stall": 3, "restarts_per_hour": 0}
    try:
        result = project.run("tune")
        assert result.code == 0 and "Traceback" not in result.output, result.output
        rows = {row["name"]: row for row in told(project)["candidates"]}
        assert told(project)["winner"]["name"] == "as_is"
        assert {row["standing"] for name, row in rows.items() if name != "as_is"} == {"failed"}
        assert "prompts failed (" in rows["refuses_half"]["reason"], rows["refuses_half"]
        assert rows["refuses_all"]["reason"].endswith(
            f" prompts failed (refused {rows['refuses_all']['failed']['refused']})"
        )
        assert rows["hangs"]["reason"].startswith("server 0 was ended: no token in 3 s")
        project.no_process_left()
        project.config["servers"]["tuned"] = True
        after = project.run("completions")
        assert after.code == 0, after.output
    finally:
        project.end_processes()


def test_what_is_better_by_itself_is_tried_together(tmp_path: Path) -> None:
    tried = [
        {"name": "faster", "args": {"schedule-conservativeness": 1.6}},
        {"name": "wider", "args": {"max-running-requests": 16}},
    ]
    project = tunable(tmp_path / "project", 3000, tried, seconds=2, rounds=1)
    try:
        result = project.run("tune")
        assert result.code == 0, result.output
        winner = told(project)["winner"]
        assert set(winner["name"].split(" + ")) == {"faster", "wider"}, result.output
        assert winner["args"] == {"schedule-conservativeness": 1.6, "max-running-requests": 16}
    finally:
        project.end_processes()


def test_where_no_candidate_works_all_reasons_are_told(tmp_path: Path) -> None:
    project = tunable(tmp_path / "project", 40, [], seconds=1)
    project.config["servers"]["args"]["mem-fraction-static"] = 0.99
    try:
        result = project.run("tune")
        assert result.code != 0 and "Traceback" not in result.output, result.output
        assert result.lines("error: no candidate could be used:") and "CUDA out of memory" in result.output
        assert not (project.made.folder / "tuning.json").exists()  # an earlier one would have stayed
        assert files.read_json(project.made.folder / "tuning.partial.json")["winner"] is None
        project.no_process_left()
    finally:
        project.end_processes()

"""Flags tuned on the real SGLang: three that differ, one that can't start; and the winner, used in the same run."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.real_project import SECONDS, completions, real
from tests.standin.project import Project
from tests.standin.tuning import told
from workflow_scripts import files

PROMPTS = 4000


def rows(project: Project) -> dict[str, Any]:
    return {row["name"]: row for row in told(project)["candidates"]}


@pytest.mark.timeout(3000)
def test_the_real_servers_flags_are_measured_and_used_in_the_same_run(tiny_qwen3: Path, tmp_path: Path) -> None:
    project = real(tmp_path, str(tiny_qwen3), "tuning")
    asked = ("what is {} times 7", "compute the sum of {} and 9, and say how you came to it, step by step, please")
    sources = [("short", asked[0]), ("long", asked[1])]
    project.config["sources"] = {}
    for name, text in sources:
        project.write_rows(name, [{"prompt": text.format(number)} for number in range(PROMPTS // 2)])
        project.config["sources"][name] = {"path": f"data/{name}.jsonl", "shape": "prompt_response"}
    project.config["sampling"] = {"temperature": 0.7, "max_tokens": 24, "thinking": True}
    project.config["servers"]["args"] |= {"reasoning-parser": "qwen3"}
    project.config["tune"] = {
        "usual": False,
        "seconds": 10,
        "rounds": 3,
        "candidates": [
            {"name": "alone", "args": {"max-running-requests": 1}},
            {"name": "many", "args": {"max-running-requests": 64}},
            {"name": "no_such_kernels", "args": {"attention-backend": "fa3"}},
        ],
    }
    try:
        result = project.start("tune").wait(2400)
        assert result.code == 0, result.output
        found = rows(project)
        assert list(found) == ["as_is", "alone", "many", "no_such_kernels"]
        assert found["no_such_kernels"]["standing"] == "failed" and found["no_such_kernels"]["measurements"] == []
        assert found["no_such_kernels"]["reason"].startswith("server 0 did not start")
        speeds = {name: row["tokens_per_second"] for name, row in found.items() if row["standing"] != "failed"}
        assert speeds["alone"] < speeds["as_is"] < speeds["many"]
        assert told(project)["winner"] == {"name": "many", "args": {"max-running-requests": 64}}
        assert {name: row["seats"]["granted"] for name, row in found.items() if row["seats"]} == {
            "as_is": 8,
            "alone": 1,
            "many": 64,
        }
        assert found["many"]["seats"]["used"] > 16
        for name in speeds:  # one model, whatever runs at once
            assert found[name]["answers"]["different"] == 0 and found[name]["answers"]["same"] > 0
        length = told(project)["tokens_per_answer"]["mean"]
        assert told(project)["answers"] == PROMPTS
        made = project.made
        project.config["servers"]["tuned"] = True
        del project.config["tune"]
        result = project.start().wait(SECONDS)
        assert result.code == 0, result.output
        assert project.made == made and result.lines("tuned: the flags of many ")
        project.audit()
        speed = files.read_json(made.sidecar("00000"))["fingerprint"]["speed"]
        assert [one["max_running_requests"] for one in speed] == [64]
        answered = [row["turns"][0]["usage"]["completion_tokens"] for row in completions(made)]
        assert sum(answered) / len(answered) == pytest.approx(length, rel=0.2)
    finally:
        project.end_processes()

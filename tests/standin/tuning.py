"""A project whose launched servers are as fast as their flags say (tunable.py)."""

import json
from pathlib import Path
from typing import Any

from tests.standin.fleet import VOCABULARY
from tests.standin.project import Project
from workflow_scripts import files
from workflow_scripts.serving import environment


def tunable(folder: Path, prompts: int, candidates: list[dict[str, Any]], **tune: Any) -> Project:
    """Two sources of prompts, one of them long, and servers of eight seats."""
    project = Project.make(folder)
    project.make_model(VOCABULARY)
    python = project.home / "envs" / environment.named("sglang-cpu").folder.name / "bin" / "python"
    script = python.read_text().replace("tests.standin.server", "tests.standin.tunable")
    files.write_bytes(python, script.encode(), mode=0o755)
    project.write_rows("questions", [{"prompt": f"Question {n}?", "response": "x"} for n in range(prompts // 2)])
    user = [{"role": "user", "content": f"Chat {n}, at some length?" * 9} for n in range(prompts // 2)]
    project.write_rows("chats", [{"messages": [one, {"role": "assistant", "content": "Old."}]} for one in user])
    project.config["servers"]["args"] = {"max-running-requests": 8}
    project.config["tune"] = {"usual": False, "candidates": candidates, **tune}
    project.env["STANDIN_TUNE"] = json.dumps({"step": 0.02, "mean": 30, "knee": 16})
    return project


def told(project: Project) -> dict[str, Any]:
    """The last tuning.json."""
    found: dict[str, Any] = files.read_json(project.made.folder / "tuning.json")
    return found

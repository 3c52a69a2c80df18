"""Two real servers, and what goes wrong with single prompts there."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration.real_project import SECONDS, completions, real
from tests.standin.project import Project
from tests.standin.waiting import until
from workflow_scripts import files
from workflow_scripts.serving import supervisor


def abort_all(project: Project, number: int) -> None:
    """End all requests of a server, as its owner may."""
    folder = project.made.server(number)
    state = supervisor.read_state(folder)
    assert state is not None
    request = urllib.request.Request(
        f"{state.facts['url']}/abort_request",
        data=json.dumps({"abort_all": True}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {(folder / 'key').read_text()}"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as reply:
        assert reply.status == 200


def asked_again(project: Project) -> bool:
    """End what the servers work on, if anything at this moment; whether an answer took a second try."""
    for number in (0, 1):
        abort_all(project, number)
    time.sleep(1)  # for the second try; a prompt that is aborted eight times is given up
    made = project.made
    journals = (path.read_bytes().splitlines() for path in made.folder.glob("journal/*.jsonl"))
    lines = [json.loads(line) for lines in journals for line in lines if line.endswith(b"}")]
    answered = [line["completion"] for line in lines if "completion" in line]
    for path in made.folder.glob("completions/*.jsonl.zst"):
        answered += files.read_jsonl_zst(path)
    return any(turn["attempts"] > 1 for record in answered for turn in record["turns"])


@pytest.mark.timeout(1800)
def test_two_servers_share_the_work_and_single_faults_end_nothing(tiny_qwen3: Path, tmp_path: Path) -> None:
    project = real(tmp_path, str(tiny_qwen3), "faults")
    project.config["sampling"] = {"temperature": 0.0, "max_tokens": 6, "thinking": True}
    project.config["chunks"] = {"count": 8}
    project.config["model"]["tokenizer"] = "none"  # else the long prompt would be dropped before a server sees it
    project.config["servers"] |= {"count": 2, "leases": 1}
    project.config["servers"]["args"] |= {"reasoning-parser": "qwen3", "max-running-requests": 2}
    del project.config["sources"]["chats"]
    # As many as aborts need to meet some of them.
    rows: list[dict[str, Any]] = [{"prompt": f"what is {n} times 7"} for n in range(1000)]
    project.write_rows("questions", [*rows, {"prompt": "what is 1 plus 1, " * 400}])
    try:
        running = project.start()
        for number in (0, 1):
            log = project.results / "faults" / "servers" / str(number) / "service.log"
            until(lambda log=log: log.exists() and b"POST /v1/chat/completions" in log.read_bytes(), SECONDS)  # type: ignore[misc]
        until(lambda: asked_again(project), SECONDS)
        result = running.wait(SECONDS)
        assert result.code == 0, result.output
        project.audit()
        answered = completions(project.made)
        assert len(answered) == 1000
        assert {row["turns"][0]["server"] for row in answered} == {"server 0", "server 1"}
        # Six tokens end inside the thought: it is kept, and told.
        assert {row["turns"][0]["class"] for row in answered} == {"cut_in_thinking"}
        assert all(row["messages"][-1]["reasoning_content"] and not row["messages"][-1]["content"] for row in answered)
        assert 2 <= max(row["turns"][0]["attempts"] for row in answered) < 8  # what was aborted
        [failure] = [
            row for path in project.made.folder.glob("completions/*.failures.*") for row in files.read_jsonl_zst(path)
        ]
        assert (failure["class"], failure["final"], failure["attempts"]) == ("too_long", True, 1)
    finally:
        project.end_processes()

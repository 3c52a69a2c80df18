"""Deaths of the real SGLang, its children and its supervisor, in a run at work."""

import os
import signal
from pathlib import Path

import pytest

from tests.integration.deaths import kill, pid_of_scheduler
from tests.integration.real_project import SECONDS, completions, real
from tests.standin.project import Project, Running
from tests.standin.waiting import until


def journal_lines(project: Project) -> list[bytes]:
    """The answers that are safe."""
    lines = [line for path in sorted(project.made.folder.glob("journal/*")) for line in path.read_bytes().split(b"\n")]
    return [line for line in lines if line.startswith(b'{"completion"') and line.endswith(b"}")]


def wait_for_answers(project: Project, running: Running, count: int) -> None:
    """Return when so many answers are safe, and the run goes on."""
    until(lambda: project.journaled() >= count or running.process.poll() is not None, SECONDS)
    assert running.process.poll() is None, running.output


@pytest.mark.timeout(1800)
def test_a_run_outlives_its_servers(tiny_qwen3: Path, tmp_path: Path) -> None:
    prompts, seats = 300, 2
    project = real(tmp_path, str(tiny_qwen3), "deaths")
    project.config["sampling"] = {"temperature": 0.0, "max_tokens": 64, "thinking": True}
    project.config["servers"]["args"] |= {"reasoning-parser": "qwen3", "max-running-requests": seats}
    project.config["limits"]["stall"] = 20
    del project.config["sources"]["chats"]
    project.write_rows("questions", [{"prompt": f"what is {n} times 7"} for n in range(prompts)])
    try:
        running = project.start()
        until(lambda: project.results.exists() and list(project.results.glob("*/journal/*")) != [], SECONDS)
        server = project.made.server(0)
        safe: list[bytes] = []
        for kills, victim in enumerate(("scheduler", "service", "supervisor"), 1):
            wait_for_answers(project, running, len(safe) + 8)
            assert project.server_starts() == kills
            kill(server, victim)
            safe = journal_lines(project)
            assert 8 * kills <= len(safe) < prompts
        wait_for_answers(project, running, len(safe) + 8)
        os.kill(pid_of_scheduler(server), signal.SIGSTOP)  # it lives, and /health goes on for a while
        result = running.wait(SECONDS)
        assert result.code == 0, result.output
        assert "server 0: no token in 20 s with" in result.output
        assert project.server_starts() == 5
        project.audit()
        assert len(completions(project.made)) == prompts
        lines = journal_lines(project)
        assert len(lines) == prompts and set(safe) <= set(lines)
        # An answer may be lost on its way; none that had arrived is asked for again.
        replies = (server / "service.log").read_text(errors="replace").count('"POST /v1/chat/completions HTTP/1.1" 200')
        assert prompts <= replies <= prompts + 4 * seats
    finally:
        project.end_processes()

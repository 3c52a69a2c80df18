"""Deaths of the real SGLang and the real embedded store, their children and their supervisors, in a run at work."""

import base64
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.real_project import SECONDS, completions, real
from tests.integration.real_store import check_bucket, embedded_store
from tests.standin.project import Project, Running
from tests.standin.waiting import until
from workflow_scripts import processes
from workflow_scripts.processes import ProcessId
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.environment import Environment

GONE_SECONDS = 15.0  # that what a killed one leaves may live on: SGLang sleeps 5 s between a child's death and its own


def state_of(folder: Path) -> supervisor.State:
    state = supervisor.read_state(folder)
    assert state is not None
    return state


def pid_of_supervisor(folder: Path) -> int:
    return state_of(folder).supervisor.pid


def pid_of_service(folder: Path) -> int:
    service = state_of(folder).service
    assert service is not None
    return service.pid


def pid_of_scheduler(folder: Path) -> int:
    (pid,) = [
        process.pid
        for process in family(pid_of_service(folder))
        if Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sglang::scheduler")
    ]
    return pid


VICTIMS: dict[str, Callable[[Path], int]] = {
    "scheduler": pid_of_scheduler,
    "service": pid_of_service,
    "supervisor": pid_of_supervisor,
}


def family(pid: int) -> list[ProcessId]:
    """The process and all that come from it."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = [ProcessId.of(other) for other in pids if pid in (other, *processes.ancestors(other))]
    return [process for process in found if process is not None]


def kill(folder: Path, victim: str) -> None:
    """`kill -9` one of a supervised service; return when all that belonged to that start of it is gone."""
    pid, belong = VICTIMS[victim](folder), family(pid_of_supervisor(folder))
    assert pid in [process.pid for process in belong]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + GONE_SECONDS
    while left := [process.pid for process in belong if process.alive()]:
        assert time.monotonic() < deadline, f"{left} outlive the {victim}"
        time.sleep(0.05)


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


# --- the store ---

BIG_ROWS, BIG_ROW_BYTES = 20, 12 << 20  # rows over 16 MiB are rejected
BEGUN_BYTES = 8 << 20  # more than all else that a run stores; SeaweedFS writes an object in pieces of that size


def write_big_rows(project: Project) -> None:
    """Chats with tools that are described at great length, by random text: a chunk of two hundred megabytes."""
    chance = random.Random(0)
    rows: list[Any] = []
    for number in range(BIG_ROWS):
        text = base64.b85encode(chance.randbytes(BIG_ROW_BYTES * 4 // 5)).decode()
        tool = {"name": "tool", "description": text, "parameters": {"type": "object", "properties": {}}}
        rows.append({"messages": [{"role": "user", "content": f"Chat {number}?"}], "tools": [tool]})
    project.write_rows("chats", rows)


def stored_bytes(project: Project) -> int:
    """The size of all that the store keeps, half objects too."""
    total = 0
    for path in (project.results / ".store" / "data").rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # it is gone since it was listed
            pass
    return total


def start_and_wait_for_upload(project: Project) -> tuple[Running, int]:
    """Start the run, and return when the chunk's first bytes are in the store; and what was stored before."""
    before = stored_bytes(project)
    running = project.start()
    until(lambda: stored_bytes(project) > before + BEGUN_BYTES or running.process.poll() is not None, SECONDS)
    assert running.process.poll() is None, running.output
    return running, before


@pytest.mark.timeout(1800)
def test_an_upload_outlives_its_store(fresh: Project, seaweedfs: Environment) -> None:
    (fresh.home / "envs" / seaweedfs.folder.name).symlink_to(seaweedfs.folder)
    fresh.config["publish"] = {"store": "embedded", "bucket": "drafts", "prefix": "deaths/"}
    fresh.config["chunks"] = {"count": 1}
    write_big_rows(fresh)
    for victim in ("service", "supervisor"):
        running, before = start_and_wait_for_upload(fresh)
        kill(fresh.results / ".store", victim)
        assert stored_bytes(fresh) - before < fresh.made.completions("00000").stat().st_size, "the upload was over"
        result = running.wait(SECONDS)
        assert result.code != 0, result.output
        assert (said := result.lines("error: ")), result.output
        assert all("no answer" in line and "the embedded store died or hangs" in line for line in said), said
        assert "Traceback" not in result.output, result.output
        fresh.no_process_left()
        with embedded_store(fresh.made) as client:
            keys = [item["Key"] for item in client.list_objects_v2(Bucket="drafts")["Contents"]]
        assert not any(key.endswith("00000.jsonl.zst") for key in keys)
    fresh.finish()
    with embedded_store(fresh.made) as client:
        paths = check_bucket(fresh.made, client, "drafts", "deaths/")
    assert "completions/00000.jsonl.zst" in paths
    fresh.no_process_left()

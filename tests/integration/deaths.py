"""`kill -9` of a supervised service, of its supervisor, or of the real SGLang's scheduler."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from workflow_scripts import processes
from workflow_scripts.processes import ProcessId
from workflow_scripts.serving import supervisor

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

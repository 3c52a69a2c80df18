"""One supervised service: started when needed, watched, and ended with all that it started, whatever dies.

`ensure` starts a supervisor process, in a session of its own, for the service of a folder:

    service.json     what to run; 0600, read once and deleted by the supervisor (it holds an environment)
    state.json       `State`, the last known; whether it is still true, `is_live` tells
    runs             the Snakemake processes that asked for the service, a line each, after the folder's identity
    service.log      all that the service prints (service.log.1: the log before, where it grew too long)
    supervisor.log   what the supervisor itself has to say: nothing, unless the fault is ours
    start.lock, supervisor.lock

The supervisor ends the service when the last run that asked for it is over, its Snakemake dead in any way, and
everything that is left when the service dies. It is a child subreaper (prctl(2)): what the service started stays
among its descendants even if it leaves the session. If the supervisor itself is killed, the kernel kills the
service (PR_SET_PDEATHSIG), and `reap`, which lease holders and the next `ensure` call, ends the rest: the members
of the supervisor's session, and those that left it and carry the supervisor's mark in their environment. The mark
alone would not do: a process that sets its title overwrites what /proc shows as its environment.

All this belongs to the folder itself, by device and inode: in a copy of it (`cp -r`, a restored backup) the state and
the runs are another folder's, and count as absent. A renamed folder stays the same.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from workflow_scripts import files, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId
from workflow_scripts.serving import service_log

MARK = "DRAFTMILL_SUPERVISOR"
PROJECT = Path(__file__).parents[2]
LEFTOVERS_GRACE = 1.0  # seconds from SIGTERM to SIGKILL for what a dead service left
KILL_TIME = 15.0  # seconds that a supervisor needs at most beyond the service's grace to end everything


@dataclass(frozen=True)
class Service:
    """What to run and when it counts as ready: when `ready_url` (plain http) answers `ready_status`."""

    name: str  # for messages: "server 0"
    argv: list[str]
    env: dict[str, str]  # the whole environment
    cwd: str
    ready_url: str
    ready_status: int
    start_timeout: float  # seconds
    grace: float  # seconds from SIGTERM to SIGKILL
    hold_locks: list[str] = field(default_factory=list)  # files flocked, shared, as long as the supervisor lives
    scratch: str = ""  # a folder for what dies with the service, sockets say: empty at the start, removed at the end
    facts: dict[str, Any] = field(default_factory=dict)  # JSON values, copied into the state for its readers

    @classmethod
    def from_json(cls, value: Any) -> "Service":
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class State:
    """A service as its supervisor last wrote it.

    `failed`: never ready, or died by itself; `ended`: somebody or the run's end ended it; `reason` says why. Either
    is written before the processes are ended: they are gone when the supervisor is.
    """

    name: str
    status: Literal["starting", "ready", "failed", "ended"]
    started: int  # how many starts this folder has seen: the service's generation
    supervisor: ProcessId
    run: ProcessId | None  # the Snakemake that it lives for; None: until `stop`
    service: ProcessId | None
    group: int | None  # process group of the service
    grace: float
    facts: dict[str, Any]
    reason: str = ""
    folder: str = ""  # `folder_id` of the folder that it is the state of

    @classmethod
    def from_json(cls, value: Any) -> "State":
        ids = {key: value[key] and ProcessId.from_json(value[key]) for key in ("supervisor", "run", "service")}
        return cls(**{**value, **ids})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def folder_id(folder: Path) -> str:
    """The folder itself, as this host knows it: renamed it stays the same, a copy of it is another."""
    stat = folder.stat()
    return f"{stat.st_dev}:{stat.st_ino}"


def read_state(folder: Path) -> State | None:
    """The last state of the service in `folder`; None if there never was one, or only in what this is a copy of."""
    path = folder / "state.json"
    if not path.exists():
        return None
    state = State.from_json(files.read_json(path))
    # Another host gives the same file system another device number; but nothing of another host is used or ended.
    copied = state.supervisor.on_this_host() and state.folder != folder_id(folder)
    return None if copied else state


def is_live(state: State) -> bool:
    """Whether the service is ready and neither its supervisor nor the run that it serves has died since."""
    return state.status == "ready" and state.supervisor.alive() and (state.run is None or state.run.alive())


def ensure(folder: Path, make_service: Callable[[], Service]) -> State:
    """Return when the service in `folder` is ready; start it if there is none.

    `make_service` is called only for a start, by one process at a time: it may build environments, choose ports,
    write key files. PlainError, with the log's reason, if the service does not become ready; those who waited for
    that start get the same error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _register_run(folder)  # before the look at the state: supervisor_process looks for the next run by it
    before = read_state(folder)
    if before is not None and is_live(before):
        return before
    with _start_lock(folder) as waited:
        state = _settled(folder)
        if state is not None:
            if is_live(state):
                return state
            if waited and state.status == "failed" and state != before:
                raise _failure(state.name, state.reason, folder / "service.log")
            reap(folder)
            if left := _leftovers(state.supervisor):
                raise PlainError(
                    f"{state.name} can't start: processes {left} of its last start survive SIGKILL. "
                    f"They hang in the kernel (a GPU driver, a file system): look at `ps -o pid,stat,wchan,args`"
                )
        return _start(folder, make_service())


def registered_runs(folder: Path) -> list[ProcessId]:
    """The runs that asked for the folder's service, dead ones too."""
    try:
        lines = (folder / "runs").read_text().splitlines()
    except FileNotFoundError:
        return []
    here = f"{folder_id(folder)} "
    mine = [line.removeprefix(here) for line in lines if line.startswith(here)]
    return [run for line in mine if (run := ProcessId.parse(line)) is not None]


def _register_run(folder: Path) -> None:
    """Keep the service alive for this process's run too: several runs may share one (the embedded store)."""
    run = processes.run_process()
    if run is not None and run.on_this_host() and run not in registered_runs(folder):
        with (folder / "runs").open("a") as file:  # one write below PIPE_BUF: lines of several jobs don't mix
            file.write(f"{folder_id(folder)} {run}\n")


def stop(folder: Path) -> None:
    """End the service in `folder` and its supervisor; return when no process is left."""
    state = read_state(folder)
    if state is None:
        return
    _signal(state.supervisor, signal.SIGTERM)
    if not _is_gone(state.supervisor, state.grace + KILL_TIME):
        _signal(state.supervisor, signal.SIGKILL)
        _is_gone(state.supervisor, KILL_TIME)
    reap(folder)
    (folder / "runs").unlink(missing_ok=True)  # who still needs the service asks again


def reap(folder: Path) -> list[int]:
    """If the folder's supervisor is dead, end what it left; return the pids that were found."""
    state = read_state(folder)
    if state is None or not (found := _leftovers(state.supervisor)):
        return []
    processes.end_all(lambda: _leftovers(state.supervisor), LEFTOVERS_GRACE)
    return found


def _leftovers(supervisor: ProcessId) -> list[int]:
    """The live processes of a dead supervisor: its session's, and those that left the session with its mark."""
    if not supervisor.on_this_host() or supervisor.alive():
        return []
    found = set(processes.orphans_of(supervisor))
    mark = f"{MARK}={supervisor}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:  # it ended meanwhile, or is another user's
            pass
    return sorted(found - {os.getpid()})


def _signal(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to that very process, if it lives."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.alive():
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _is_gone(process: ProcessId, timeout: float) -> bool:
    """Wait until a process of this host is dead; False after `timeout` seconds."""
    return not process.alive() or processes.wait_for_death(process, timeout)


@contextmanager
def _start_lock(folder: Path) -> Iterator[bool]:
    """Hold the right to start the service; the value says whether somebody else held it first."""
    path = folder / "start.lock"
    with ExitStack() as held:
        try:
            held.enter_context(files.file_lock(path, wait=False))
            waited = False
        except files.Locked:
            held.enter_context(files.file_lock(path))
            waited = True
        yield waited


def _settled(folder: Path) -> State | None:
    """The folder's state once no supervisor is about to change it: wait out one that starts or ends."""
    while True:
        state = read_state(folder)
        if state is not None and is_live(state):
            return state
        try:
            with files.file_lock(folder / "supervisor.lock", wait=False):
                pass
        except files.Locked:
            if state is not None and not state.supervisor.on_this_host():
                raise PlainError(
                    f"{state.name} is run from host {state.supervisor.host}: {folder} is in use there. "
                    f"End that run first, or give this one a folder of its own"
                ) from None
        else:
            if state is None or not state.supervisor.alive():
                return state
        time.sleep(0.1)


def _start(folder: Path, service: Service) -> State:
    """Spawn a supervisor and wait until its service is ready."""
    files.write_json(folder / "service.json", service.to_json(), mode=0o600)
    fd = os.open(folder / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "workflow_scripts.serving.supervisor_process", str(folder.absolute())],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
        )
    finally:
        os.close(fd)
    supervisor = ProcessId.of(process.pid)
    # It outlives this call, perhaps this process; where it does not, somebody must collect its exit status.
    threading.Thread(target=process.wait, name=f"wait-{process.pid}", daemon=True).start()
    while True:
        alive = supervisor is not None and supervisor.alive()
        state = read_state(folder)  # after `alive`: a dead one has written its last word
        if state is not None and state.supervisor == supervisor:
            if state.status == "ready":
                return state
            if state.status != "starting":
                _is_gone(state.supervisor, state.grace + KILL_TIME)
                raise _failure(service.name, state.reason, folder / "service.log")
        if not alive:
            reap(folder)
            raise _failure(service.name, "its supervisor died", folder / "supervisor.log")
        time.sleep(0.1)


def _failure(name: str, reason: str, log: Path) -> PlainError:
    if lines := service_log.telling_lines(log):
        return PlainError("\n  ".join([f"{name} did not start: {reason}. From {log}:", *lines]))
    return PlainError(f"{name} did not start: {reason}. Its log, {log}, says nothing")

"""Processes named so that no other can be taken for them, watched, and ended with all they started (Linux)."""

import ctypes
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RUN_PROCESS_VARIABLE = "DRAFTMILL_RUN_PROCESS"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessId:
    """A process for ever: pids are reused, a start time (clock ticks since boot) under one boot id is not.

    `host` is for messages: a machine may be renamed while a run lives.
    """

    host: str = field(compare=False)
    boot_id: str
    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The identity of the process that has `pid` now; None if there is none (a zombie counts as none)."""
        stat = _stat(pid)
        if stat is None or stat.state == "Z":
            return None
        return cls(socket.gethostname(), boot_id(), pid, stat.start)

    @classmethod
    def here(cls) -> "ProcessId":
        """This process."""
        me = cls.of(os.getpid())
        assert me is not None
        return me

    @classmethod
    def from_json(cls, value: Any) -> "ProcessId":
        return cls(value["host"], value["boot_id"], value["pid"], value["start"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.host} {self.boot_id} {self.pid} {self.start}"

    @classmethod
    def parse(cls, text: str) -> "ProcessId | None":
        """The inverse of `str`; None if `text` is no identity."""
        parts = text.split()
        if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
            return None
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]))

    def on_this_host(self) -> bool:
        return self.boot_id == boot_id()

    def alive(self) -> bool:
        """Whether this very process lives, on this host."""
        return self.on_this_host() and ProcessId.of(self.pid) == self


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    group: int
    session: int
    start: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name is in parentheses and may hold spaces and parentheses: cut after the last one (proc(5)).
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def boot_id() -> str:
    """What pids count in: the machine's boot, and the namespace of pids, of which a container has one of its own."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{machine_boot_id()}:{namespace}"


def machine_boot_id() -> str:
    """The machine's boot, the same in all its containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def prctl(option: int, value: int) -> None:
    """Linux prctl(2) with one argument; OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def die_with_parent() -> None:
    """For Popen's preexec_fn: SIGKILL this child when the *thread* that forked it dies. Fork from main threads."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ancestors(pid: int) -> Iterator[int]:
    """The parents of `pid`, nearest first."""
    stat = _stat(pid)
    while stat is not None and stat.parent > 0:
        yield stat.parent
        stat = _stat(stat.parent)


def claim_run_process() -> ProcessId:
    """Name this process in the environment as the run's Snakemake, unless the variable names a live ancestor.

    A nested Snakemake keeps the outer one's name; a name from another host, or of a dead process, is overwritten.
    """
    named = run_process()
    if named is not None and named.alive() and named.pid in set(ancestors(os.getpid())):
        return named
    me = ProcessId.here()
    os.environ[RUN_PROCESS_VARIABLE] = str(me)
    return me


def run_process() -> ProcessId | None:
    """The run's Snakemake process, as the environment names it."""
    return ProcessId.parse(os.environ.get(RUN_PROCESS_VARIABLE, ""))


def end_run() -> None:
    """Tell the run's Snakemake to stop; it lets its jobs finish what they have begun."""
    run = run_process()
    if run is not None and run.alive() and run != ProcessId.here():
        signal_all([run.pid], signal.SIGTERM)


def watch(process: ProcessId, on_death: Callable[[], object]) -> None:
    """Call `on_death` in a thread of its own as soon as `process` is dead (at once if it is dead now)."""

    def wait() -> None:
        wait_for_death(process)
        on_death()

    threading.Thread(target=wait, name=f"watch-{process.pid}", daemon=True).start()


def wait_for_death(process: ProcessId, timeout: float | None = None) -> bool:
    """Wait until `process` is dead; False if it still lives after `timeout` seconds."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.alive():  # the pid was another's when the pidfd was opened
            return True
        return bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)


def session_members(session: int) -> list[int]:
    """The live pids of a process session."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and stat.session == session and stat.state != "Z":
                found.append(int(entry.name))
    return found


def children(running: str) -> list[int]:
    """The live children of this process, in its session, with `running` in their arguments."""
    me, session = os.getpid(), os.getsid(0)
    found = []
    for entry in Path("/proc").iterdir():
        stat = _stat(int(entry.name)) if entry.name.isdigit() else None
        if stat is not None and (stat.parent, stat.session) == (me, session):
            try:
                if running.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it ended meanwhile
                pass
    return found


def orphans_of(leader: ProcessId) -> list[int]:
    """What is left of the session that `leader` led, without the leader.

    Sound against pid reuse: the kernel does not reuse a number that is still a session's, so members under a
    dead leader are its own; if a process with another start time has the number, the old session is empty.
    """
    if not leader.on_this_host():
        return []
    now = ProcessId.of(leader.pid)
    if now is not None and now != leader:
        return []
    return [pid for pid in session_members(leader.pid) if pid != leader.pid]


def end_all(find: Callable[[], list[int]], grace: float) -> list[int]:
    """SIGTERM what `find` lists, after `grace` seconds SIGKILL it; return who survived even that."""
    signal_all(find(), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (pids := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    deadline = time.monotonic() + 5.0
    while (pids := find()) and time.monotonic() < deadline:
        signal_all(pids, signal.SIGKILL)
        time.sleep(0.05)
    return pids


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each of `pids` that lives and is ours."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass

"""A server that is old, or holds much more memory than at first, is started anew between chunks. Off by default."""

import os
import time
from pathlib import Path

from workflow_scripts import files, processes
from workflow_scripts.jobs import say
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.leases import Lease
from workflow_scripts.serving.supervisor import State

POLL_SECONDS = 0.2
GIGABYTE = 10**9


def recycle_if_due(run: Run, lease: Lease) -> None:
    """End the leased server if it is due, once the other jobs' requests are done: the next `connect` starts it.

    One server of the run at a time: where another is being ended, this one's turn comes with its next chunk.
    """
    state = supervisor.read_state(lease.folder)
    if run.config.servers.urls or state is None or not supervisor.is_live(state):
        return
    why = _why(run, lease.folder, state)
    if why is None:
        return
    try:
        with lease.alone():
            say(f"{state.name}: {why}; it starts anew when the requests in flight are done")
            while lease.others_flying():
                time.sleep(POLL_SECONDS)
            if supervisor.read_state(lease.folder) == state:
                supervisor.stop(lease.folder)
    except files.Locked:
        return


def _why(run: Run, folder: Path, state: State) -> str | None:
    limits = run.config.limits
    if limits.recycle_hours is not None:
        hours = age_seconds(state.supervisor) / 3600
        if hours > limits.recycle_hours:
            return f"it is {hours:.1f} hours old (limits.recycle_hours: {limits.recycle_hours:g})"
    if limits.recycle_gigabytes is not None:
        grown = (_memory(state.supervisor.pid) - _first_memory(folder, state)) / GIGABYTE
        if grown > limits.recycle_gigabytes:
            return f"its memory grew by {grown:.1f} GB (limits.recycle_gigabytes: {limits.recycle_gigabytes:g})"
    return None


def _first_memory(folder: Path, state: State) -> int:
    """Bytes that this generation held when a chunk first asked."""
    path = folder / "memory.json"
    known = files.read_json(path, "started", "bytes") if path.exists() else {}
    if known.get("started") != state.started:
        known = {"started": state.started, "bytes": _memory(state.supervisor.pid)}
        files.write_json(path, known)
    return int(known["bytes"])


def _memory(session: int) -> int:
    """Resident bytes of a session's processes."""
    page = os.sysconf("SC_PAGE_SIZE")
    pages = 0
    for pid in processes.session_members(session):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:  # it ended meanwhile
            continue
    return pages * page


def age_seconds(process: processes.ProcessId) -> float:
    """Seconds since a process of this host started."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - process.start / os.sysconf("SC_CLK_TCK")

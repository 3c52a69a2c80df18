"""The lock on a results folder: one run at a time, told by whom, and gone with the process that holds it."""

import errno
import fcntl
import getpass
import time
from pathlib import Path
from typing import BinaryIO

import orjson

from workflow_scripts import processes
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId

_held: dict[Path, BinaryIO] = {}  # open for as long as this process lives; the kernel drops the lock on any death


def take(results: Path, run: str) -> None:
    """Hold the lock for the rest of this process; twice is once. PlainError names the run that holds it."""
    results.mkdir(parents=True, exist_ok=True)
    path = results.absolute() / ".lock"
    if path in _held:
        return
    try:
        file = path.open("a+b")
    except PermissionError:
        raise PlainError(
            f"{path} is {_owner(path)}'s, last held by {_holder(path)}; use a results folder of your own (`results`)"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise PlainError(f"{results} is in use by {_holder(path)}; wait for it or end it. Dry runs are free") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise PlainError(
            f"{results} is on a file system without locks ({error.strerror}), where two runs could spoil each other; "
            f"mount it with them, or choose another folder (`results`)"
        ) from error
    file.truncate(0)
    me = ProcessId.here().to_json() | {"user": getpass.getuser(), "run": run, "since": int(time.time())}
    file.write(orjson.dumps(me))
    file.flush()
    _held[path] = file


def holder(results: Path) -> tuple[str, ProcessId] | None:
    """The run, and its Snakemake, that took the lock last, dead or alive. Nothing is locked for that."""
    try:
        held = orjson.loads((results / ".lock").read_bytes())
        return str(held["run"]), ProcessId.from_json(held)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _holder(path: Path) -> str:
    """Who wrote the lock file, in words; what it says of its host is true there, perhaps not here."""
    try:
        held = orjson.loads(path.read_bytes())
        process = ProcessId.from_json(held)
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(held["since"]))
        return f"run {held['run']}: process {process.pid} of {held['user']} on {_where(process)}, since {since}"
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return "another run"


def _where(process: ProcessId) -> str:
    """The process's host. The boot is the machine's, the host name and the pid may be a container's."""
    if process.on_this_host() or process.boot_id.partition(":")[0] != processes.machine_boot_id():
        return process.host
    return f"{process.host}, a container on this machine (or the machine itself, if this is one)"


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):  # a user that this machine does not know, as in a container
        return "another user"

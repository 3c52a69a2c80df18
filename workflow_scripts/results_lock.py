"""The lock on a results folder: one run at a time, told by whom, and gone with the process that holds it."""

import fcntl
import getpass
from pathlib import Path
from typing import BinaryIO

import orjson

from workflow_scripts import processes
from workflow_scripts.errors import PlainError

_held: list[BinaryIO] = []  # open for as long as this process lives; the kernel drops the lock on any death


def take(results: Path, run: str) -> None:
    """Hold the lock for the rest of this process. PlainError names the run that holds it."""
    results.mkdir(parents=True, exist_ok=True)
    file = (results / ".lock").open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = _holder(file.read())
        file.close()
        raise PlainError(f"{results} is in use by {holder}; wait for it or end it. Dry runs are free") from None
    file.truncate(0)
    me = processes.ProcessId.here().to_json() | {"user": getpass.getuser(), "run": run}
    file.write(orjson.dumps(me))
    file.flush()
    _held.append(file)


def _holder(text: bytes) -> str:
    try:
        held = orjson.loads(text)
        return f"run {held['run']}: process {held['pid']} of {held['user']} on {held['host']}"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "another run"

"""A server's standing in one run: how often it died, how long its next start waits, and whether it is out of use.

SERVERS/K/standing.json    {"run", "deaths": [{"at", "start", "reason", "kind"}], "out"}

`run` is the Snakemake process that it counts for: with the next start of Snakemake all begins anew. `at` is in Unix
seconds, `start` the generation that died. Of the kinds, deaths that came `apart`, while one job tried prompts that had
brought the server down before, count against no server.
"""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from workflow_scripts import files, processes
from workflow_scripts.config import Limits
from workflow_scripts.errors import PlainError

FAILED_STARTS = 3  # in a row take a server out of use
MOST_DOUBLINGS = 6
HOUR = 3600.0

Kind = Literal["start", "work", "apart"]


class ServerOut(PlainError):
    """The server is out of use for the rest of this run; others may go on."""


class NoServerLeft(PlainError):
    """All servers of the run are out of use."""


def note_death(folder: Path, start: int, reason: str, kind: Kind) -> None:
    """Record the death of generation `start`; a second time is the first."""
    with files.file_lock(folder / "standing.lock"):
        standing = _read(folder)
        if any(death["start"] == start for death in standing["deaths"]):
            return
        standing["deaths"].append({"at": time.time(), "start": start, "reason": reason, "kind": kind})
        files.write_json(folder / "standing.json", standing)


def has_died(folder: Path, start: int) -> bool:
    """Whether generation `start` died in this run, of whatever: a server that was only started anew did not."""
    return any(death["start"] == start for death in _read(folder)["deaths"])


def take_out(folder: Path, reason: str) -> None:
    """Use this server no more in this run."""
    with files.file_lock(folder / "standing.lock"):
        files.write_json(folder / "standing.json", _read(folder) | {"out": reason})


def why_out(folder: Path) -> str | None:
    """Why the server is out of use in this run; None if it is not."""
    reason: str | None = _read(folder)["out"]
    return reason


def last_death(folder: Path) -> str:
    """The reason of its last death in this run."""
    deaths = _read(folder)["deaths"]
    return str(deaths[-1]["reason"]) if deaths else "it is not known why"


def usable(servers: Path, count: int) -> Collection[int]:
    """The servers that are not out of use. NoServerLeft, with all reasons, if none is."""
    reasons = {number: why_out(servers / str(number)) for number in range(count)}
    left = [number for number, reason in reasons.items() if reason is None]
    if not left:
        lines = "\n".join(f"  {reason}" for reason in reasons.values())
        raise NoServerLeft(f"no server is left to answer prompts:\n{lines}\nMend that; the same line then goes on")
    return left


def judge(folder: Path, name: str, limits: Limits) -> float:
    """Seconds to wait before the next start; ServerOut, now and from now on, if it died too often for another."""
    deaths = [death for death in _read(folder)["deaths"] if death["kind"] != "apart"]
    started_in_vain = 0
    for death in reversed(deaths):
        if death["kind"] != "start":
            break
        started_in_vain += 1
    recent = sum(death["at"] > time.time() - HOUR for death in deaths)
    why = None
    if started_in_vain >= FAILED_STARTS:
        why = f"did not start {started_in_vain} times"
    elif recent > limits.restarts_per_hour:
        why = f"died {recent} times in an hour"
    if why is not None:
        reason = f"{name} {why}; the last time: {deaths[-1]['reason']}"
        take_out(folder, reason)
        raise ServerOut(reason)
    return limits.restart_wait * 2 ** min(recent - 1, MOST_DOUBLINGS) if recent else 0.0


def _read(folder: Path) -> dict[str, Any]:
    here = str(processes.run_process())
    path = folder / "standing.json"
    known: dict[str, Any] = files.read_json(path, "run", "deaths", "out") if path.exists() else {}
    return known if known.get("run") == here else {"run": here, "deaths": [], "out": None}

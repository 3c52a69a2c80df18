"""This machine's own limits: disk, inodes, open files, ports, clock."""

import os
import resource
import shutil
import socket
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from workflow_scripts.doctor.findings import Finding, errors, warnings
from workflow_scripts.reporting.forecast import disk_line
from workflow_scripts.run import Run
from workflow_scripts.serving import capacity

FILES_PER_CHUNK = 8  # prompts, completions, failures, sidecar, journal, logs
FILES_OF_OTHERS = 2000  # sources, training, receipts, what Snakemake keeps
FILES_OF_JOB = 64  # open in a chunk job beside its connections
SKEW_SECONDS = 300.0  # S3 refuses what is signed a quarter of an hour off; tokens and certificates come sooner
BUILT = 1735689600.0  # 2025-01-01: a clock before that was never set


def disk(run: Run) -> list[Finding]:
    """Room for what the run is taken to need."""
    line = disk_line(run)
    return warnings("disk", line.removeprefix("disk: ")) if line else []


def inodes(run: Run, of: Callable[[Path], tuple[int, int]] | None = None) -> list[Finding]:
    """Room for its files; `of` gives a folder's inodes in all and free ones."""
    folder = existing(run.folder)
    total, free = (of or _inodes)(folder)
    needed = len(run.chunks()) * FILES_PER_CHUNK + FILES_OF_OTHERS
    if not total or free >= needed:  # some file systems make inodes as they go, and tell none
        return []
    return errors(
        "disk",
        f"{run.results} has {free:,} inodes free, and the run makes about {needed:,} files: remove small files there, "
        f"or choose a folder on another disk with `results`, or larger chunks",
    )


def _inodes(folder: Path) -> tuple[int, int]:
    stat = os.statvfs(folder)
    return stat.f_files, stat.f_favail


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def writable(run: Run) -> list[Finding]:
    """Whether the results folder can be written to."""
    folder = existing(run.folder)
    if os.access(folder, os.W_OK):
        return []
    return errors("disk", f"{folder} can't be written to: make it yours, or choose another folder with `results`")


def room(what: str, folder: Path, megabytes: float) -> list[Finding]:
    """Whether `folder`, or what is above it, has so much free."""
    free = shutil.disk_usage(existing(folder)).free / 1e6
    if free >= megabytes:
        return []
    return errors(
        "disk",
        f"{what} takes about {megabytes:,.0f} MB in {folder}, which has {free:,.0f} MB free: make room, or choose a "
        f"folder on another disk (DRAFTMILL_HOME; HF_HOME for models of the hub)",
    )


def open_files(run: Run) -> list[Finding]:
    """Whether a chunk job may open a connection for each seat of its server; it raises its limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    args = run.config.servers.args
    seats = args.get("max-running-requests")
    needed = FILES_OF_JOB + (seats if isinstance(seats, int) else capacity.SEATS_UNTIL_KNOWN * 8)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return []
    return errors(
        "limits",
        f"only {hard} files may be open (`ulimit -Hn`), and a job opens up to {needed}: have that limit raised "
        f"(nofile in /etc/security/limits.conf; of a container --ulimit nofile=65536)",
    )


def ports(bind: Callable[[], None] | None = None) -> list[Finding]:
    """Whether a server can listen on 127.0.0.1."""
    try:
        (bind or _bind)()
    except OSError as error:
        return errors("ports", f"nothing can listen on 127.0.0.1 ({error.strerror}): bring up the loopback interface")
    return []


def _bind() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        probe.listen()


def clock(now: float | None = None) -> list[Finding]:
    """Whether the clock was ever set."""
    if (time.time() if now is None else now) >= BUILT:
        return []
    return errors("clock", "this machine's clock is years behind: set it (timedatectl set-ntp true)")


def clock_against(url: str, server_time: Callable[[str], float | None] | None = None) -> list[Finding]:
    """Whether the clock is that of a server that the run talks to."""
    theirs = (server_time or _date_of)(url)
    skew = 0.0 if theirs is None else time.time() - theirs
    if abs(skew) < SKEW_SECONDS:
        return []
    side = "ahead of" if skew > 0 else "behind"
    return errors(
        "clock",
        f"this machine's clock is {abs(skew):,.0f} s {side} that of {url}: S3 and the hub refuse what is dated so; set "
        f"it (timedatectl set-ntp true)",
    )


def _date_of(url: str) -> float | None:
    """The Date of a server's answer, as Unix seconds; None without one: other checks tell what can't be reached."""
    try:
        with urlopen(Request(url, method="HEAD"), timeout=10) as reply:
            said = reply.headers.get("Date")
    except HTTPError as error:
        with error:
            said = error.headers.get("Date")
    except (OSError, ValueError):
        return None
    try:
        return parsedate_to_datetime(said).timestamp() if said else None
    except ValueError:
        return None

"""Our own pinned pip at work: installing and downloading what requirement files pin, told as it goes.

The user's pip settings (variables PIP_*, pip.conf) hold: mirrors, certificates, proxies, and where CPU wheels of torch
lie. Only wheels are taken, so no package's code runs during an installation.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pip

from workflow_scripts import files, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say

SAY_EVERY_SECONDS = 10.0
# Settings that would send the packages elsewhere than we say, or that hide what pip does.
MISLEADING_SETTINGS = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_QUIET", "PYTHONPATH")


def pins(requirements: Path) -> list[str]:
    """The lines of a requirements file that say something: no comments, no blank lines, continuations joined."""
    text = requirements.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line.strip()]


def install_command(python: Path, requirements: Path, *, nodeps: bool) -> list[str]:
    """Install a requirements file for the interpreter `python`, with hashes checked where the file has them.

    `pip --python` would do, but it runs a second pip process, which a kill of the first leaves at work. What that
    second process runs is pip's own runner, so we run that.
    """
    runner = Path(pip.__file__).with_name("__pip-runner__.py")
    command = [str(python), str(runner), "install", "--no-warn-script-location", *_common(requirements)]
    return [*command, "--no-deps"] if nodeps else command


def download_command(requirements: Path, folder: Path) -> list[str]:
    """Download the wheels of a requirements file, without what they require."""
    return [sys.executable, "-m", "pip", "download", "--no-deps", f"--dest={folder}", *_common(requirements)]


def _common(requirements: Path) -> list[str]:
    options = ["--progress-bar=off", "--no-input", "--disable-pip-version-check", "--only-binary=:all:"]
    if any("--hash=" in pin for pin in pins(requirements)):
        options.append("--require-hashes")
    return [*options, "-r", str(requirements)]


class Progress:
    """What is made, and how far it is: said every ten seconds, read from pip's output and from the disk."""

    def __init__(self, what: str, folder: Path, log: Path, wanted: int) -> None:
        self.what = what
        self.folder = folder
        self.log = log
        self.wanted = wanted
        self.started = self.said = time.monotonic()

    def tick(self) -> None:
        """Say where it stands, if the last word is ten seconds old."""
        if time.monotonic() - self.said >= SAY_EVERY_SECONDS:
            self.said = time.monotonic()
            step = how_far(self.log.read_text(encoding="utf-8", errors="replace"), self.wanted)
            say(f"{self.what}: {step}, {folder_bytes(self.folder) / 1e6:,.0f} MB on disk, {self.seconds:.0f} s")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def how_far(log: str, wanted: int) -> str:
    """What pip is doing, by its output so far.

    It names each requirement once ("Collecting", or "Processing" for a file), each wheel that it downloads or has
    in its cache, and at last says "Installing collected packages".
    """
    if log.count("Installing collected packages") > log.count("Successfully installed"):
        return "installing the packages"
    seen = len(re.findall(r"^(?:Collecting|Processing) ", log, re.MULTILINE))
    fetched = len(re.findall(r"^\s*(?:Downloading|Using cached) \S+\.whl \(|^Processing \S+\.whl", log, re.MULTILINE))
    return f"fetched {fetched} of {max(wanted, seen)} packages"


def run_pip(command: Sequence[str], scratch: Path, lock: BinaryIO, progress: Progress) -> None:
    """Run one of the commands above to its end; its output is appended to the log. PlainError if it fails.

    `scratch` takes pip's temporary files, so that only one disk can be full.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if name not in MISLEADING_SETTINGS}
    environ |= {"TMPDIR": str(scratch), "PIP_USER": "0", "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}
    status = run_child(command, environ, lock, progress)
    if status != 0:
        raise PlainError(why(status, progress.log.read_text(encoding="utf-8", errors="replace"), progress))


def run_child(command: Sequence[str], environ: Mapping[str, str], lock: BinaryIO, progress: Progress) -> int:
    """Run a child to its end, its output in the log; return its status. Call it from a main thread.

    The child dies with this thread, and it inherits the lock: who waits for the lock starts only when no child
    writes any more.
    """
    with progress.log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            preexec_fn=processes.die_with_parent,
            pass_fds=(lock.fileno(),),
        )
        try:
            while True:
                try:
                    return process.wait(1.0)
                except subprocess.TimeoutExpired:
                    progress.tick()
        except BaseException:
            process.kill()
            process.wait()
            raise


# What pip's output holds, and what to do about it; the first that fits counts.
REMEDIES = (
    (r"No space left on device|Errno 28", "The disk is full: make room, or set DRAFTMILL_HOME to another disk"),
    (r"DO NOT MATCH THE HASHES", "The package index serves other bytes than the pinned ones: don't use it"),
    (r"CERTIFICATE_VERIFY_FAILED|SSLError", "The index's certificate isn't trusted: see pip's setting `cert`"),
    (
        r"NewConnectionError|NameResolutionError|Connection refused|Network is unreachable|[Tt]imed? ?out",
        "The package index can't be reached: check the network, the proxy, and pip's own settings (pip config list)",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "No index of pip's settings has this version for this Python and machine. Python 3.11 to 3.13 on x86_64 Linux "
        "is what the pins are made for; a company's mirror may lack it (pip config list)",
    ),
    (r"ResolutionImpossible", "A constraint of pip's settings contradicts the pins (pip config list)"),
)


def why(status: int, log: str, progress: Progress) -> str:
    """What went wrong, in pip's words, and what to do about it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"ERROR|OSError|error:", line)] or lines
    if status == -signal.SIGINT or "Operation cancelled by user" in log:
        return f"{progress.what} could not be made: pip was interrupted. Run the same line again"
    ended = f"pip was ended by {signal.Signals(-status).name}" if status < 0 else f"pip failed with status {status}"
    remedy = next((advice for pattern, advice in REMEDIES if re.search(pattern, log)), "Run the same line again")
    return "\n".join(
        [f"{progress.what} could not be made: {ended}", *errors[-4:], remedy, f"All that pip said: {progress.log}"]
    )


def check_room(what: str, folder: Path, megabytes: float) -> None:
    """PlainError if the disk of `folder` has less than `megabytes` free."""
    free = shutil.disk_usage(folder).free / 1e6
    if free < megabytes:
        raise PlainError(
            f"{what} takes about {megabytes:,.0f} MB in {folder}, which has {free:,.0f} MB free. Make room, or choose "
            f"a folder on another disk (DRAFTMILL_HOME; HF_HOME for models of the hub)"
        )


def folder_bytes(folder: Path) -> int:
    """What the files below `folder` take on disk; files that vanish meanwhile count as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118 (30,000 files)
            except FileNotFoundError:
                pass
    return total


@contextmanager
def one_builder(lock: Path, what: str) -> Iterator[BinaryIO]:
    """Hold `lock` exclusively; while another job has it, say so, and for how long."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    next_word = 0.0
    with lock.open("a+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - started
            if waited >= next_word:
                say(f"waiting for another job that makes {what} ({waited:.0f} s so far)")
                next_word = waited + 30
            time.sleep(0.5)
        yield file


def sync_folder(folder: Path) -> None:
    """Put every file of `folder` on disk, so that a rename of it is safe against a power loss."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    files.fsync_folder(folder)

"""The pinned environments that are built on first use: the SGLang servers' and the embedded store's.

Each is a venv of our own Python at `CACHE/envs/NAME-HASH12`, built by our own pinned pip under the user's pip settings:
mirrors, and CPU wheels of torch where those offer them. It counts as built when its marker, draftmill.json, exists,
which is written last; a folder without one is what a killed build left, and is made anew.
"""

import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pip

from workflow_scripts import files, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say

ENVS = Path(__file__).parents[2] / "envs"
LAUNCHER = Path(__file__).with_name("sglang_server.py")
MARKER = "draftmill.json"
SAY_EVERY_SECONDS = 10.0
# Settings that would send the packages elsewhere than into the environment, or install none; the others are the user's.
MISLEADING_SETTINGS = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_USER", "PIP_DRY_RUN", "PIP_QUIET")


@dataclass(frozen=True)
class Recipe:
    """An environment's size on disk (building takes half as much again), and the command that shows that it works."""

    megabytes: int
    check: tuple[str, ...]


RECIPES = {
    "sglang-cpu": Recipe(2500, ("python", "-P", str(LAUNCHER), "--check-imports")),
    "seaweedfs": Recipe(160, ("weed", "version")),
}


@dataclass(frozen=True)
class Environment:
    """A built environment; `bytes` is its size on disk."""

    name: str
    folder: Path
    python: Path
    requirements_hash: str
    bytes: int


def ensure(name: str) -> Environment:
    """The environment `name` of envs/, built first where it is missing (one builder at a time, the others wait).

    Call it from a main thread: the children die with the thread that starts them. PlainError tells pip's reason.
    """
    env = _named(name)
    if not _is_built(env):
        with one_builder(lock_path(env), f"the {name} environment") as lock:
            if not _is_built(env):
                _build(env, lock)
    marker = files.read_json(env.folder / MARKER)
    return Environment(name, env.folder, env.python, env.requirements_hash, marker["bytes"])


def lock_path(env: Environment) -> Path:
    """Who uses `env` for long holds a shared flock on this file; who builds or removes it, an exclusive one."""
    return env.folder.with_name(f"{env.folder.name}.lock")


def log_path(env: Environment) -> Path:
    """All that pip said at the last build."""
    return env.folder.with_name(f"{env.folder.name}.log")


def requirement_files(name: str) -> list[Path]:
    """The requirement files of an environment, in the order of installation."""
    first, nodeps = ENVS / f"{name}.txt", ENVS / f"{name}-nodeps.txt"
    if not first.is_file():
        raise PlainError(f"{first} is missing: there is no environment {name!r} in this clone")
    return [first, nodeps] if nodeps.is_file() else [first]


def pins(requirements: Path) -> list[str]:
    """The lines of a requirements file that say something: no comments, no blank lines, continuations joined."""
    text = requirements.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line.strip()]


def pip_install(python: Path, requirements: Path, *, nodeps: bool = False) -> list[str]:
    """The command by which our own pip installs a requirements file for the interpreter `python`.

    Like `pip --python`, but that would run a second process, which a kill of the first leaves behind; pip's own
    runner is what that second process runs. Wheels only: no package's code runs during an installation.
    """
    runner = Path(pip.__file__).with_name("__pip-runner__.py")
    command = [str(python), str(runner), "install", "--progress-bar=off", "--no-input", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--no-warn-script-location", "-r", str(requirements)]
    if nodeps:
        command.append("--no-deps")
    if any("--hash=" in pin for pin in pins(requirements)):
        command.append("--require-hashes")
    return command


def run_pip(command: list[str], log: Path, scratch: Path, lock: BinaryIO, progress: "Progress") -> None:
    """Run a pip command to its end, saying how far it is; its output is appended to `log`. PlainError if it fails.

    `scratch` takes pip's temporary files, so that only one disk can be full. The child inherits the lock: nobody
    who waits for it can start while a child still writes.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    environ = {key: value for key, value in os.environ.items() if key not in MISLEADING_SETTINGS}
    environ |= {"TMPDIR": str(scratch), "PIP_USER": "0", "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}
    environ.pop("PYTHONPATH", None)
    with log.open("ab") as output:
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
                    status = process.wait(1.0)
                    break
                except subprocess.TimeoutExpired:
                    progress.tick()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status != 0:
        raise PlainError(_why(status, log, progress.what))


@dataclass
class Progress:
    """Says every ten seconds how far pip is: packages fetched of those wanted, MB on disk, seconds."""

    what: str
    folder: Path
    log: Path
    wanted: int
    started: float
    said: float

    @classmethod
    def start(cls, what: str, folder: Path, log: Path, wanted: int) -> "Progress":
        now = time.monotonic()
        return cls(what, folder, log, wanted, now, now)

    def tick(self) -> None:
        if time.monotonic() - self.said >= SAY_EVERY_SECONDS:
            self.said = time.monotonic()
            step = how_far(self.log.read_text(encoding="utf-8", errors="replace"), self.wanted)
            say(f"{self.what}: {step}, {folder_bytes(self.folder) / 1e6:,.0f} MB on disk, {self.seconds:.0f} s")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def how_far(log: str, wanted: int) -> str:
    """What pip is doing, read from its output so far.

    pip names each requirement once ("Collecting", or "Processing" for a file), each wheel that it downloads or has
    in its cache, and at last the line "Installing collected packages".
    """
    if log.count("Installing collected packages") > log.count("Successfully installed"):
        return "installing the packages"
    seen = len(re.findall(r"^(?:Collecting|Processing) ", log, re.MULTILINE))
    fetched = len(re.findall(r"^\s*(?:Downloading|Using cached) \S+\.whl \(|^Processing \S+\.whl", log, re.MULTILINE))
    return f"fetched {fetched} of {max(wanted, seen)} packages"


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
    """Hold `lock` exclusively; while another job has it, say so and for how long."""
    started = time.monotonic()
    next_word = 0.0
    while True:
        try:
            with files.file_lock(lock, wait=False) as file:
                yield file
            return
        except files.Locked as error:
            if str(error) != str(lock):
                raise
        waited = time.monotonic() - started
        if waited >= next_word:
            say(f"waiting for another job that makes {what} ({waited:.0f} s so far)")
            next_word = waited + 30
        time.sleep(0.5)


def _named(name: str) -> Environment:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    parts = [f"python {version} {platform.machine()}"]
    for requirements in requirement_files(name):
        parts += [requirements.name, *pins(requirements)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    folder = files.cache_home() / "envs" / f"{name}-{digest[:12]}"
    return Environment(name, folder, folder / "bin" / "python", digest, 0)


def _is_built(env: Environment) -> bool:
    # The interpreter is a link out of the venv: a Python that was uninstalled leaves the marker and no environment.
    return (env.folder / MARKER).is_file() and env.python.exists()


def _build(env: Environment, lock: BinaryIO) -> None:
    recipe = RECIPES[env.name]
    log = log_path(env)
    requirements = requirement_files(env.name)
    wanted = sum(len(pins(path)) for path in requirements)
    free, needed = shutil.disk_usage(env.folder.parent).free, recipe.megabytes * 1_500_000
    if free < needed:
        raise PlainError(
            f"building the {env.name} environment takes about {needed / 1e6:,.0f} MB in {env.folder.parent}, which has "
            f"{free / 1e6:,.0f} MB free. Make room, or set DRAFTMILL_HOME to a folder on another disk"
        )
    say(
        f"building the {env.name} environment: {wanted} package{'s'[: wanted != 1]}, about {recipe.megabytes:,} MB, "
        f"in {env.folder} (once; log: {log})"
    )
    shutil.rmtree(env.folder, ignore_errors=True)
    log.write_bytes(b"")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(env.folder)
    scratch = env.folder / "tmp"
    progress = Progress.start(f"the {env.name} environment", env.folder, log, wanted)
    for path in requirements:
        run_pip(pip_install(env.python, path, nodeps=path is not requirements[0]), log, scratch, lock, progress)
    shutil.rmtree(scratch)
    _check(env, recipe, log)
    size = folder_bytes(env.folder)
    files.write_json(env.folder / MARKER, {"name": env.name, "requirements": env.requirements_hash, "bytes": size})
    say(f"built the {env.name} environment: {size / 1e6:,.0f} MB in {progress.seconds:.0f} s")


def _check(env: Environment, recipe: Recipe, log: Path) -> None:
    """Run what is installed once: an environment that can't is no environment."""
    command = [str(env.folder / "bin" / recipe.check[0]), *recipe.check[1:]]
    environ = {**os.environ, "DRAFTMILL_ENGINE": env.name}
    environ.pop("PYTHONPATH", None)
    with log.open("ab") as output:
        try:
            status = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                preexec_fn=processes.die_with_parent,
            ).returncode
        except OSError as error:
            raise PlainError(f"the {env.name} environment was installed, but {command[0]}: {error.strerror}") from error
    if status != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
        raise PlainError(f"the {env.name} environment was installed, but does not start:\n{tail}\nThe whole log: {log}")


# The text in pip's output, and what to do about it; the first that fits counts.
REMEDIES = (
    (r"No space left on device|Errno 28", "The disk is full: make room, or set DRAFTMILL_HOME to another disk"),
    (
        r"NewConnectionError|NameResolution|Connection refused|Network is unreachable|timed out|ConnectTimeout",
        "The package index can't be reached: check the network, the proxy, and pip's own settings (pip config list)",
    ),
    (r"THESE PACKAGES DO NOT MATCH THE HASHES", "A mirror serves other bytes than the pinned ones: don't use it"),
    (r"CERTIFICATE_VERIFY_FAILED|SSLError", "The index's certificate isn't trusted: see pip's settings cert, PIP_CERT"),
    (
        r"No matching distribution found|Could not find a version",
        "No index that pip is set up with has this version for this Python and machine; Python 3.11 to 3.13 on Linux "
        "x86_64 is supported. A company mirror may lack it",
    ),
    (r"ResolutionImpossible", "A constraint in pip's settings contradicts the pins: see pip config list"),
    (r"Operation cancelled by user", "It was interrupted; run the same line again"),
)


def _why(status: int, log: Path, what: str) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"ERROR|OSError|error:|fatal", line)] or lines
    ended = f"pip was ended by {signal.Signals(-status).name}" if status < 0 else f"pip failed with status {status}"
    remedy = next((advice for pattern, advice in REMEDIES if re.search(pattern, text)), None)
    parts = [f"{what} could not be made: {ended}", *errors[-4:], remedy or "Run the same line again", f"The log: {log}"]
    return "\n".join(part for part in parts if part)

"""The pinned environments that are built on first use: the SGLang servers' and the embedded store's.

Each is a venv of our own Python at `CACHE/envs/NAME-HASH12`. It counts as built when its marker, draftmill.json,
exists, which is written last; a folder without one is what a killed build left, and is made anew.
"""

import hashlib
import os
import platform
import shutil
import sys
import venv
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workflow_scripts import files, machine
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.machine import toolkit
from workflow_scripts.serving import causes, cuda_home, installer

ENVS = Path(__file__).parents[2] / "envs"
LAUNCHER = Path(__file__).with_name("sglang_server.py")
MARKER = "draftmill.json"


@dataclass(frozen=True)
class Recipe:
    """An environment's size on disk (building takes half as much again), and the command that shows that it works."""

    megabytes: int
    check: tuple[str, ...]
    remark: str = ""
    kernels: bool = False  # whether it builds GPU kernels, with the CUDA toolkit in it


IMPORTS = ("python", "-P", str(LAUNCHER), "--check-imports")
RECIPES = {
    "sglang-cpu": Recipe(2500, IMPORTS, " (5,200 with a CUDA torch)"),
    "sglang-cuda": Recipe(10100, IMPORTS, kernels=True),
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
    env = named(name)
    if not is_built(env):
        with installer.one_builder(lock_path(env), f"the {name} environment") as lock:
            if not is_built(env):
                _build(env, lock)
    marker = files.read_json(env.folder / MARKER)
    with suppress(OSError):
        (env.folder / MARKER).touch()  # when it was last used: files.clean removes what nobody did for a month
    return Environment(name, env.folder, env.python, env.requirements_hash, marker["bytes"])


def lock_path(env: Environment) -> Path:
    """Who uses `env` for long holds a shared flock on this file; who builds or removes it, an exclusive one."""
    return env.folder.with_name(f"{env.folder.name}.lock")


def log_path(env: Environment) -> Path:
    """All that pip and the check said at the last build."""
    return env.folder.with_name(f"{env.folder.name}.log")


def _requirement_files(name: str) -> list[Path]:
    """In the order of installation; the second one's packages are installed without what they require."""
    first, nodeps = ENVS / f"{name}.txt", ENVS / f"{name}-nodeps.txt"
    if not first.is_file():
        raise PlainError(
            f"there is no environment {name!r} to build ({first} is missing). Name SGLang servers that run already in "
            f"servers.urls, a Python with SGLang as servers.python, or set servers.engine: sglang-cpu"
        )
    return [first, nodeps] if nodeps.is_file() else [first]


def named(name: str) -> Environment:
    """The environment `name` as it would be built here, whether it is or not."""
    parts = [f"python {sys.version_info.major}.{sys.version_info.minor} {platform.machine()}"]
    for requirements in _requirement_files(name):
        parts += [requirements.name, *installer.pins(requirements)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    folder = files.cache_home() / "envs" / f"{name}-{digest[:12]}"
    return Environment(name, folder, folder / "bin" / "python", digest, 0)


def search_path(python: Path) -> str:
    """PATH for what an environment's Python runs: SGLang and FlashInfer call `ninja`, which lies beside it."""
    return f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def is_built(env: Environment) -> bool:
    """Whether it is there, whole."""
    # The interpreter is a link out of the venv: a Python that was uninstalled leaves the marker and no environment.
    return (env.folder / MARKER).is_file() and env.python.exists()


def _build(env: Environment, lock: BinaryIO) -> None:
    recipe, log, what = RECIPES[env.name], log_path(env), f"the {env.name} environment"
    installer.check_room(f"building {what}", env.folder.parent, recipe.megabytes * 1.5)
    requirements = _requirement_files(env.name)
    wanted = sum(len(installer.pins(path)) for path in requirements)
    packages = "1 package" if wanted == 1 else f"{wanted} packages"
    size_on_disk = f"about {recipe.megabytes:,} MB{recipe.remark}"
    say(f"building {what}: {packages}, {size_on_disk}, in {env.folder} (once; pip's output: {log})")
    if env.folder.exists():
        shutil.rmtree(env.folder)
    log.write_bytes(b"")
    # Symbolic links: our own interpreter may itself be a venv's, and the new one's home is then the base Python.
    venv.EnvBuilder(symlinks=True, with_pip=False).create(env.folder)
    scratch = env.folder / "tmp"
    progress = installer.Progress(what, env.folder, log, wanted)
    for number, path in enumerate(requirements):
        installer.run_pip(installer.install_command(env.python, path, nodeps=number > 0), scratch, lock, progress)
    shutil.rmtree(scratch)
    _check(env, recipe, lock, progress)
    size = installer.folder_bytes(env.folder)
    files.write_json(env.folder / MARKER, {"name": env.name, "requirements": env.requirements_hash, "bytes": size})
    say(f"built {what}: {size / 1e6:,.0f} MB in {progress.seconds:.0f} s")


def _check(env: Environment, recipe: Recipe, lock: BinaryIO, progress: installer.Progress) -> None:
    """Run what was installed once: an environment that can't is none."""
    program = env.folder / "bin" / recipe.check[0]
    environ = {
        **cuda_home.clean_environ(),
        "DRAFTMILL_ENGINE": env.name,
        "PATH": search_path(env.python),
        **cuda_home.variables(env.folder),
    }
    _try(progress, environ, lock, [str(program), *recipe.check[1:]], "doesn't start")
    home = cuda_home.find(env.folder) if recipe.kernels else None
    if home is not None and cuda_home.driver_library() is not None:
        scratch = env.folder / "probe"
        scratch.mkdir(exist_ok=True)
        devices = machine.look().devices
        command = cuda_home.probe_command(home, devices[0].gpu.sm if devices else None, scratch)
        _try(progress, environ, lock, command, "can't build a GPU kernel", home)
        shutil.rmtree(scratch)


def _try(
    progress: installer.Progress,
    environ: Mapping[str, str],
    lock: BinaryIO,
    command: list[str],
    fault: str,
    home: Path | None = None,
) -> None:
    """Run a command of the environment. PlainError with its last lines, and the known causes of what they say."""
    said_before = progress.log.stat().st_size
    try:
        status = installer.run_child(command, environ, lock, progress)
    except OSError as error:
        raise PlainError(f"{progress.what} was installed, but {command[0]} can't be run: {error.strerror}") from error
    if status != 0:
        with progress.log.open("rb") as file:
            file.seek(said_before)
            said = file.read().decode(errors="replace")
        found = toolkit.find(machine.here(), str(home)) if home is not None else None
        told = causes.told(f"{progress.what} was installed, but {fault}", said, found)
        raise PlainError(f"{told}\nAll of it: {progress.log}")

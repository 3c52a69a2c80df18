"""Which environment SGLang runs in here: the pinned build that this machine can use, or the user's own Python.

A build is chosen by driver, CUDA version and compute capability, and the reason is told. The CUDA toolkit that kernels
are built with when a server starts is the environment's own: what is installed beside it is not looked at.
"""

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workflow_scripts.config import Servers
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.machine import Machine, look
from workflow_scripts.machine.toolkit import dotted
from workflow_scripts.serving import causes, cuda_home, environment
from workflow_scripts.serving.environment import Environment

OWN = "servers.python"
CHECK_SECONDS = 900


@dataclass(frozen=True)
class Build:
    """An environment of envs/ for GPUs, and what it needs."""

    name: str
    cuda: tuple[int, int]
    driver: int  # https://docs.nvidia.com/deploy/cuda-compatibility: CUDA 13.x needs 580 or newer
    sm: range  # what torch is built for (torch.cuda.get_arch_list()), and later ones of the same major number
    glibc: tuple[int, int]  # of sglang's wheels: manylinux_2_34
    machine: str


BUILDS = (Build("sglang-cuda", (13, 0), 580, range(75, 130), (2, 34), "x86_64"),)


@dataclass(frozen=True)
class Choice:
    """The environment's name (`OWN` for the user's), and why it is this one."""

    name: str
    reason: str


def choose(servers: Servers, machine: Machine, glibc: tuple[int, int] | None, processor: str) -> Choice:
    """The environment for this engine on this machine. PlainError with every reason why none fits."""
    if servers.python is not None:
        return Choice(OWN, f"servers.python is {servers.python}")
    if servers.engine == "sglang-cpu":
        return Choice("sglang-cpu", "servers.engine is sglang-cpu")
    against: list[str] = []
    for build in BUILDS:
        if not (unfit := misfits(build, machine, glibc, processor)):
            driver, gpu = machine.driver, machine.devices[0].gpu
            assert driver is not None
            return Choice(
                build.name,
                f"SGLang for CUDA {dotted(build.cuda)}: driver {driver.version} is {build.driver} or newer, and "
                f"{gpu.name} is SM{gpu.sm}",
            )
        against += unfit
    raise PlainError("\n".join(dict.fromkeys(against)))


def misfits(build: Build, machine: Machine, glibc: tuple[int, int] | None, processor: str) -> list[str]:
    """Why a build can't be used here, each with what to do."""
    found = []
    why = without_gpu(machine)
    if why and machine.driver is None:
        return [why]
    assert machine.driver is not None
    if machine.driver.major < build.driver:
        found.append(
            f"driver {machine.driver.version} is too old: SGLang for CUDA {dotted(build.cuda)} needs {build.driver} or "
            f"newer. Install a newer driver, or name a Python with an SGLang for your driver's CUDA "
            f"{dotted(machine.driver.cuda)} as servers.python"
        )
    if why and not (found and not machine.gpus):  # an old driver's nvidia-smi knows no compute_cap, and only fails
        found.append(why)
    for gpu in {device.gpu.name: device.gpu for device in machine.devices if not device.gpu.lost}.values():
        if gpu.sm not in build.sm:
            found.append(
                f"{gpu.name} is SM{gpu.sm}: the build for CUDA {dotted(build.cuda)} has kernels for SM{build.sm.start} "
                f"to SM{build.sm.stop - 1}. Leave it out by CUDA_VISIBLE_DEVICES, or name a Python of your own as "
                f"servers.python"
            )
    if processor != build.machine:
        found.append(f"the pins are made for {build.machine}, this is {processor}: name a Python as servers.python")
    if glibc is not None and glibc < build.glibc:
        found.append(
            f"this system's glibc {dotted(glibc)} is older than {dotted(build.glibc)}, which SGLang's wheels need: use "
            f"a newer system or container (Ubuntu 22.04, RHEL 9), or name a Python as servers.python"
        )
    return found


def without_gpu(machine: Machine) -> str | None:
    """Why no GPU can be used here, with what to do; None if one can."""
    cpu = "servers.engine: sglang-cpu runs without a GPU"
    if machine.driver is None:
        return f"there is no NVIDIA driver here, and servers.engine: sglang needs one; {cpu}"
    if machine.devices:
        return None
    if not machine.gpus:
        says = f" ({machine.refusal})" if machine.refusal else ""
        return (
            f"NVIDIA's driver {machine.driver.version} is loaded, but nvidia-smi tells of no GPU{says}: after a "
            f"driver's update reboot, in a container ask for GPUs (--gpus all); {cpu}"
        )
    if all(gpu.mig and not gpu.instances for gpu in machine.gpus):
        return (
            "MIG is on, and no GPU has an instance: make some (nvidia-smi mig -cgi PROFILE -C), or turn MIG off "
            "(nvidia-smi -mig 0)"
        )
    return (
        "CUDA_VISIBLE_DEVICES leaves no GPU to use (or it names none that is here): unset it, or name GPUs by the "
        "numbers or UUIDs of nvidia-smi -L"
    )


def system_glibc() -> tuple[int, int] | None:
    """The version of this system's C library; None where it is no glibc."""
    name, version = platform.libc_ver()
    major, _, minor = version.partition(".")
    return (int(major), int(minor)) if name == "glibc" and major.isdigit() and minor.isdigit() else None


def chosen(servers: Servers, machine: Machine) -> Choice:
    """What `choose` says of this system."""
    return choose(servers, machine, system_glibc(), platform.machine())


def ensure(servers: Servers, *, check: bool = False) -> Environment:
    """The environment that servers run in, built first where it is missing; call it from a main thread.

    `check` tries the user's own too; a pinned one is tried when it is built. PlainError, with the known causes, for one
    that can't be built or doesn't work.
    """
    if servers.engine == "sglang-cpu" and servers.python is None:
        return environment.ensure("sglang-cpu")
    machine = look()
    choice = chosen(servers, machine)
    if choice.name != OWN:
        say(f"environment: {choice.reason}")
        return environment.ensure(choice.name)
    python = Path(str(servers.python)).absolute()
    if not python.is_file():
        raise PlainError(f"servers.python: {python} is not there; name the python of an environment with SGLang")
    if check:
        _check_own(python, servers.engine, machine)
    return Environment(OWN, python.parents[1], python, "", 0)


def python_here(servers: Servers) -> Path | None:
    """The Python of the environment that servers run in; None where there is none yet, or none can be."""
    try:
        if (name := chosen(servers, look()).name) != OWN:
            env = environment.named(name)
            return env.python if environment.is_built(env) else None
    except PlainError:
        return None
    python = Path(str(servers.python)).absolute()
    return python if python.is_file() else None


def _check_own(python: Path, engine: str, machine: Machine) -> None:
    """Import all that a server imports, by the user's Python."""
    say(f"trying {python}: can SGLang be imported?")
    environ = {**cuda_home.clean_environ(), "DRAFTMILL_ENGINE": engine, "PATH": environment.search_path(python)}
    try:
        done = subprocess.run(
            [str(python), "-P", str(environment.LAUNCHER), "--check-imports"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environ,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PlainError(f"servers.python: {python} can't be run: {error}") from error
    if done.returncode != 0:
        said = done.stdout + done.stderr
        raise PlainError(causes.told(f"servers.python: {python} can't run SGLang", said, machine.toolkit))
    say(done.stdout.strip().splitlines()[-1])


def lock_paths(env: Environment) -> list[str]:
    """What a server holds, shared, so that nobody removes its environment; the user's own is theirs to keep."""
    return [] if env.name == OWN else [str(environment.lock_path(env))]


def variables(env: Environment) -> Mapping[str, str]:
    """Environment variables for a server of this environment: its own tools, and its own CUDA toolkit, whole."""
    own = cuda_home.variables(env.folder) if env.name in {build.name for build in BUILDS} else {}
    return {"PATH": environment.search_path(env.python), **own}

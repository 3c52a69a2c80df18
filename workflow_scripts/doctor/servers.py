"""Where answers come from: GPUs, driver, toolkit and environment here, or servers that run already."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.doctor import host
from workflow_scripts.doctor.findings import Finding, caught, errors, notes, warnings
from workflow_scripts.errors import PlainError
from workflow_scripts.machine import Machine, Toolkit
from workflow_scripts.machine.toolkit import dotted
from workflow_scripts.run import Run
from workflow_scripts.serving import builds, environment, gpu_plan, known_flags, launch, supervisor
from workflow_scripts.serving.environment import Environment

BUILDING = 1.5  # an environment's size on disk while it is built, times the built one's


def gpus(run: Run, machine: Machine) -> list[Finding]:
    """The driver, the cards, how servers share them, and who holds them."""
    config = run.config
    if config.servers.engine != "sglang":
        return []
    found = caught("gpus", lambda: builds.chosen(config.servers, machine))
    if not machine.devices:
        why = builds.without_gpu(machine)  # which no build of ours has told where servers.python is the user's
        return found or errors("gpus", *([why] if why else []))
    found += errors("gpus", *gpu_plan.device_problems(config, machine))
    found += notes("gpus", *gpu_plan.device_notes(config, machine))
    for number in range(gpu_plan.server_count(config, len(machine.devices))):
        state = supervisor.read_state(run.server(number))
        if state is not None and supervisor.is_live(state):
            continue  # it is held by our own server
        for device in gpu_plan.devices_of(number, config, machine):
            if line := gpu_plan.busy(device):
                tell = errors if gpu_plan.crowded(device, config.servers.args) else warnings
                found += tell("gpus", line)
    return found


def toolkit(found: Toolkit | None) -> list[Finding]:
    """What the toolkit lacks that servers.python builds kernels with, unless it has them ready.

    A pinned environment has a toolkit of its own.
    """
    if found is None or found.nvcc is None:
        return warnings(
            "toolkit",
            "there is no nvcc, which kernels are built with when a server starts: install a CUDA toolkit and point "
            "CUDA_HOME to it, or leave servers.python out",
        )
    lines = []
    if found.headers != found.nvcc:
        lines.append(
            f"nvcc is of CUDA {dotted(found.nvcc)}, the headers in {found.home}/include are of "
            f"{dotted(found.headers)}: install one toolkit whole and point CUDA_HOME to it, or leave servers.python out"
        )
    if not found.cccl:
        lines.append(f"{found.home}/include has no nv/target: install the toolkit's package cuda-cccl")
    if not found.cudart:
        lines.append(f"{found.home}/lib64 has no libcudart.so: link libcudart.so.* to that name there")
    if not found.libcuda:
        lines.append(
            f"the linker finds no libcuda.so: mkdir -p {found.home}/lib64/stubs; ln -s "
            f"/usr/lib/x86_64-linux-gnu/libcuda.so.1 {found.home}/lib64/stubs/libcuda.so"
        )
    return warnings("toolkit", *lines)


def compiler(machine: Machine) -> list[Finding]:
    """g++, which every nvcc needs."""
    if machine.compiler:
        return []
    return errors("toolkit", "there is no g++, which nvcc needs: install it (Debian, Ubuntu: apt-get install g++)")


def chosen_environment(run: Run, machine: Machine) -> Environment | None:
    """The environment that servers would run in, built or not; None if this machine can have none."""
    servers = run.config.servers
    if servers.python is not None:
        return Environment(builds.OWN, Path(servers.python).parent.parent, Path(servers.python), "", 0)
    try:
        return environment.named(builds.chosen(servers, machine).name)
    except PlainError:
        return None


def environment_there(env: Environment) -> list[Finding]:
    """Whether it is built, or can be."""
    if env.name == builds.OWN:
        if env.python.is_file():
            return []
        return errors("environment", f"servers.python: {env.python} is not there; name the python of an environment")
    if environment.is_built(env):
        return []
    size = environment.RECIPES[env.name].megabytes
    short = host.room(f"building the {env.name} environment", files.cache_home(), size * BUILDING)
    return short or notes("environment", f"the {env.name} environment is built first: about {size:,} MB")


def flags(run: Run, env: Environment, ours: Mapping[str, Any], *, ask: bool) -> list[Finding]:
    """Whether the environment's SGLang knows the flags of servers.args, and `ours`, which GPUs and model ask for.

    It is asked if it is built, and, where it was not asked before, only if that may take its minute.
    """
    servers = run.config.servers
    for_us = [
        f"servers.args.{name}: can't be set here: {launch.MANAGED[name]}"
        for name in servers.args
        if name in launch.MANAGED
    ]
    there = env.python.is_file() if env.name == builds.OWN else environment.is_built(env)
    if not there:
        return errors("flags", *for_us)
    try:
        known = (known_flags.listing if ask else known_flags.remembered)(env, servers.engine)
    except PlainError as error:
        return errors("flags", *for_us, " ".join(str(error).split()))
    if known is None:
        return errors("flags", *for_us)
    given: dict[str, Any] = {name: value for name, value in servers.args.items() if name not in launch.MANAGED}
    return errors("flags", *for_us, *known_flags.mistakes({**ours, **given}, known, given))


def running(run: Run, key: str | None) -> list[Finding]:
    """Of servers that run already: whether each answers, is there once, and grants the context."""
    servers = run.config.servers
    doubled = [url for url in dict.fromkeys(servers.urls) if servers.urls.count(url) > 1]
    found = errors("servers", *(f"servers.urls names {url} twice, for twice the load: name it once" for url in doubled))
    asked = servers.args.get("context-length")
    for url in dict.fromkeys(servers.urls):
        try:
            granted = launch.granted(url, key)
        except PlainError as error:
            found += errors("servers", str(error))
            continue
        if isinstance(asked, int) and granted.context_length < asked:
            found += errors(
                "servers",
                f"{url} grants a context of {granted.context_length:,}, and servers.args.context-length is {asked:,}: "
                f"start it with --context-length {asked}, or lower that",
            )
    return found

"""What one server is given to start with: its GPUs, its flags, checked against its own SGLang, and the reasons."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.machine import Machine, look
from workflow_scripts.serving import gpu_plan, known_flags, launch, model_facts
from workflow_scripts.serving.environment import Environment


@dataclass(frozen=True)
class Given:
    """A server's flags, whole, the names of its GPUs (none on the CPU), and lines that say why."""

    flags: dict[str, Any]
    gpus: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def to_server(config: Config, number: int, built: Environment, model: Path, port: int) -> Given:
    """What server `number` is given. PlainError, a line for each, for what can't work, before a model is loaded."""
    servers = config.servers
    known = known_flags.listing(built, servers.engine)
    found = flags_of(config, number, model, port, look() if servers.engine == "sglang" else None)
    if lines := known_flags.mistakes(found.flags, known, servers.args):
        raise PlainError("\n".join(lines))
    return found


def flags_of(config: Config, number: int, model: Path, port: int, machine: Machine | None) -> Given:
    """The same, unchecked; without a `machine` for a server on the CPU."""
    servers = config.servers
    served = config.model.path.rpartition(":")[2]
    if machine is None:
        return Given(launch.flags(servers.engine, servers.args, model, served, port, servers.gpus_per_server))
    devices = gpu_plan.devices_of(number, config, machine)
    if len(devices) < servers.gpus_per_server:
        raise PlainError(
            f"server {number} needs {servers.gpus_per_server} GPU(s), but only {len(machine.devices)} can be used in "
            f"all; set servers.count and servers.gpus_per_server to fit, or servers.engine: sglang-cpu for a run "
            f"without GPUs"
        )
    if problems := gpu_plan.device_problems(config, machine):
        raise PlainError("\n".join(problems))
    facts = model_facts.read(model, _own_template(servers.args.get("chat-template")))
    planned = gpu_plan.plan(config, facts, devices)
    flags = launch.flags(
        servers.engine, servers.args, model, served, port, servers.gpus_per_server, hardware=planned.flags
    )
    held = [line for device in devices if (line := gpu_plan.busy(device))]
    return Given(flags, [device.name for device in devices], [*planned.reasons, *held])


def _own_template(named: Any) -> str | None:
    """The chat template that servers.args names, if it is a file here."""
    path = Path(named) if isinstance(named, str) else None
    return path.read_text(encoding="utf-8", errors="replace") if path is not None and path.is_file() else None

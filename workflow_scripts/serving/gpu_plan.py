"""From config, machine and model to what each server is given, with the reasons; or everything that is in the way."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.machine import Device, Machine
from workflow_scripts.serving import gpu_flags, gpu_memory, launch
from workflow_scripts.serving.model_facts import ModelFacts

BUSY_SHARE = 0.05  # of a card's memory that may be held before it counts as busy: a desktop, a driver's own
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"  # SGLang refuses a longer context without it
PARALLEL_SIZES = (
    "tp-size",
    "tensor-parallel-size",
    "dp-size",
    "data-parallel-size",
    "pp-size",
    "pipeline-parallel-size",
)


@dataclass(frozen=True)
class Plan:
    """What a server on GPUs gets beside servers.args, and the lines that say why."""

    flags: dict[str, Any]
    reasons: list[str]


def server_count(config: Config, devices: int) -> int:
    """Servers that are to run on so many devices."""
    if config.servers.count != "auto":
        return config.servers.count
    return max(1, devices // config.servers.gpus_per_server)


def devices_of(server: int, config: Config, machine: Machine) -> list[Device]:
    """The devices of server number `server` (from 0), possibly fewer than it needs."""
    size = config.servers.gpus_per_server
    return machine.devices[server * size : (server + 1) * size]


def device_problems(config: Config, machine: Machine) -> list[str]:
    """What is wrong with how servers and devices are dealt out; none of it is about the model."""
    servers, devices = config.servers, machine.devices
    found = []
    wanted = server_count(config, len(devices)) * servers.gpus_per_server
    if wanted > len(devices):
        count = "one server" if servers.count == "auto" else f"servers.count {servers.count}"
        fit = len(devices) // servers.gpus_per_server
        advice = f"set servers.count to {fit} or auto" if fit else f"lower servers.gpus_per_server to {len(devices)}"
        found.append(
            f"{count} of {servers.gpus_per_server} GPU(s) each takes {wanted}, and {len(devices)} can be used here; "
            f"two servers never share one: {advice}"
        )
    doubled = [key for key, times in Counter(device.key for device in devices).items() if times > 1]
    if doubled:
        found.append(f"CUDA_VISIBLE_DEVICES names {doubled[0]} twice: two servers would share its memory; name it once")
    if servers.gpus_per_server > 1 and any(device.instance for device in devices):
        found.append("servers.gpus_per_server: MIG instances can't work together; set it to 1")
    return found


def device_notes(config: Config, machine: Machine) -> list[str]:
    """What is worth knowing, and no fault."""
    found = []
    size = config.servers.gpus_per_server
    cut = [gpu.name for gpu in machine.gpus if gpu.mig]
    if cut:
        found.append(
            f"MIG is on for {len(cut)} of {len(machine.gpus)} cards: each instance is a GPU of its own here, with its "
            f"share of the memory"
        )
    if size > 1 and not machine.linked:
        found.append(
            f"no NVLink joins the GPUs: a server of {size} talks over PCIe at every layer; where the model fits on "
            f"one, servers.gpus_per_server: 1 is faster"
        )
    kinds = {device.gpu.name for device in machine.devices}
    if len(kinds) > 1:
        found.append(
            f"cards of {len(kinds)} kinds ({', '.join(sorted(kinds))}): each server goes by its own; where the model "
            f"is too large for some, leave those out by CUDA_VISIBLE_DEVICES"
        )
    left = len(machine.devices) - server_count(config, len(machine.devices)) * size
    if left > 0:
        found.append(
            f"{left} of {len(machine.devices)} GPUs stay idle: servers.count and gpus_per_server leave them out"
        )
    return found


def busy(device: Device) -> str | None:
    """Who holds a card's memory, where that is enough to be in the way."""
    gpu = device.gpu
    if device.instance is not None or not gpu.mebibytes or gpu.used < gpu.mebibytes * BUSY_SHARE:
        return None
    holders = [f"process {holder.pid} ({holder.name})" for holder in gpu.holders]
    who = ", ".join(holders) or "a process that nvidia-smi doesn't name (in another container?)"
    return (
        f"GPU {gpu.index} is in use: {gpu.used / 1024:,.1f} of {gpu.mebibytes / 1024:,.1f} GiB are held by {who}. End "
        f"it, or leave the card out by CUDA_VISIBLE_DEVICES"
    )


def plan(config: Config, model: ModelFacts, devices: list[Device]) -> Plan:
    """The flags of one server on its devices. PlainError with a line for everything that can't work."""
    args, size = config.servers.args, len(devices)
    chosen = gpu_flags.choose(config, model, devices[0])
    flags = {**chosen.flags, **args}
    problems = model_problems(config, model, devices)
    if problems:
        raise PlainError("\n".join(problems))
    fit = gpu_memory.fit(model, devices, flags, _answer_tokens(config))
    reasons = [
        f"model: {model.kind}{_quantized(model)}, {model.architecture or model.model_type}",
        f"memory: {fit.line()}",
        *(f"{' '.join(launch.words({flag: value}))}: {chosen.reasons[flag]}" for flag, value in chosen.flags.items()),
    ]
    if size > 1 and not any(name in args for name in PARALLEL_SIZES):
        reasons.append(f"--tp-size {size}: servers.gpus_per_server")
    return Plan(chosen.flags, reasons)


def model_problems(config: Config, model: ModelFacts, devices: list[Device]) -> list[str]:
    """Why the model can't run on these devices of one server, a line each."""
    args = config.servers.args
    flags: Mapping[str, Any] = {**gpu_flags.choose(config, model, devices[0]).flags, **args}
    found = gpu_flags.refused(args, config, model, devices[0])
    parallel = any(name in args for name in PARALLEL_SIZES)
    if not parallel and (problem := gpu_memory.heads_problem(model, len(devices))):
        found.append(problem)
    asked = args.get("context-length")
    stretched = "json-model-override-args" in args or LONGER_CONTEXT in os.environ
    if isinstance(asked, int) and model.context is not None and asked > model.context and not stretched:
        found.append(f"servers.args.context-length: {asked:,} is more than the model's own {model.context:,}; lower it")
    elif problem := gpu_memory.fit(model, devices, flags, _answer_tokens(config)).problem:
        found.append(problem)
    return found


def _answer_tokens(config: Config) -> int | None:
    prompt = config.prompts.max_prompt_tokens
    return None if prompt is None else prompt + config.sampling.tokens_of_turns()[-1]


def _quantized(model: ModelFacts) -> str:
    return "" if model.quantization == "none" else f" in {model.quantization}"

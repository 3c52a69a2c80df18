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
EVEN_SHARE = 0.9  # of the most free memory, that each GPU of a server has (sglang/srt/distributed/bootstrap.py)
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"  # SGLang refuses a longer context without it
TENSOR, PIPELINE, DATA = (
    ("tp-size", "tensor-parallel-size"),
    ("pp-size", "pipeline-parallel-size"),
    ("dp-size", "data-parallel-size"),
)
PARALLEL_SIZES = (*TENSOR, *PIPELINE, *DATA)


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
    for gpu in {device.gpu.index: device.gpu for device in devices}.values():
        if gpu.lost:
            found.append(
                f"GPU {gpu.index} ({gpu.name}) does not answer: reset it or reboot (`dmesg | grep Xid` tells more), or "
                f"leave it out by CUDA_VISIBLE_DEVICES"
            )
    for number in range(server_count(config, len(devices))):
        sizes = {device.mebibytes: device.gpu.name for device in devices_of(number, config, machine)}
        if sizes and min(sizes) < max(sizes) * EVEN_SHARE:
            found.append(
                f"server {number} would lie on GPUs of unequal memory ({', '.join(sorted(sizes.values()))}), which "
                f"SGLang refuses: name those that belong together side by side in CUDA_VISIBLE_DEVICES"
            )
    copies = 1 if servers.args.get("enable-dp-attention") else _size(servers.args, DATA)
    asked = copies * _shards(config)
    if asked > servers.gpus_per_server:
        named = ", ".join(f"{name}: {servers.args[name]}" for name in PARALLEL_SIZES if name in servers.args)
        found.append(
            f"servers.args ({named}) spreads a server over {asked} GPUs, and servers.gpus_per_server gives it "
            f"{servers.gpus_per_server}: set that to {asked}"
        )
    return found


def _size(args: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The largest of the sizes that `args` has by these names; 1 without any."""
    return max([1, *(int(args[name]) for name in names if isinstance(args.get(name), int))])


def _shards(config: Config) -> int:
    """Over how many GPUs one copy of the model lies."""
    args = config.servers.args
    if any(name in args for name in PARALLEL_SIZES):
        return _size(args, TENSOR) * _size(args, PIPELINE)
    return config.servers.gpus_per_server


def device_notes(config: Config, machine: Machine) -> list[str]:
    """What is worth knowing, and no fault."""
    found = []
    size = config.servers.gpus_per_server
    cut = [gpu for gpu in machine.gpus if gpu.mig]
    if cut:
        found.append(
            f"MIG is on for {len(cut)} of {len(machine.gpus)} cards: each instance is a GPU of its own here, with its "
            f"share of the memory"
        )
    if bare := [str(gpu.index) for gpu in cut if not gpu.instances]:
        found.append(
            f"GPU {', '.join(bare)} can't be used: MIG is on there without an instance; make some (nvidia-smi mig -cgi "
            f"PROFILE -C), or turn MIG off (nvidia-smi -i {','.join(bare)} -mig 0)"
        )
    if machine.unknown is not None:
        found.append(
            f"CUDA_VISIBLE_DEVICES names {machine.unknown}, which is no GPU that can be used here: CUDA leaves out "
            f"that and all that follow"
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
    """Who holds a card's memory, where that is more than a desktop takes."""
    gpu = device.gpu
    if device.instance is not None or not gpu.mebibytes or gpu.used < gpu.mebibytes * BUSY_SHARE:
        return None
    holders = [f"process {holder.pid} ({holder.name})" for holder in gpu.holders]
    who = ", ".join(holders) or "a process that nvidia-smi doesn't name (in another container?)"
    return (
        f"GPU {gpu.index} is in use: {gpu.used / 1024:,.1f} of {gpu.mebibytes / 1024:,.1f} GiB are held by {who}. End "
        f"it, or leave the card out by CUDA_VISIBLE_DEVICES"
    )


def crowded(device: Device, args: Mapping[str, Any]) -> bool:
    """Whether others hold more of a card than SGLang would leave free: then less is left for it than it needs."""
    return device.gpu.used * gpu_memory.MEBI > device.gpu.mebibytes * gpu_memory.MEBI - gpu_memory.usable(device, args)


def plan(config: Config, model: ModelFacts, devices: list[Device]) -> Plan:
    """The flags of one server on its devices. PlainError with a line for everything that can't work."""
    args, size = config.servers.args, len(devices)
    chosen = gpu_flags.choose(config, model, devices[0])
    flags = {**chosen.flags, **args}
    problems = model_problems(config, model, devices)
    if problems:
        raise PlainError("\n".join(problems))
    fit = gpu_memory.fit(model, devices[: _shards(config)], flags, _answer_tokens(config))
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
    split = _size(args, TENSOR) if parallel else len(devices)
    if problem := gpu_memory.heads_problem(model, split):
        key = "servers.args.tp-size" if parallel else "servers.gpus_per_server"
        found.append(f"{key}: {problem}")
    asked = args.get("context-length")
    stretched = "json-model-override-args" in args or LONGER_CONTEXT in os.environ
    if isinstance(asked, int) and model.context is not None and asked > model.context and not stretched:
        found.append(f"servers.args.context-length: {asked:,} is more than the model's own {model.context:,}; lower it")
    elif problem := gpu_memory.fit(model, devices[: _shards(config)], flags, _answer_tokens(config)).problem:
        found.append(problem)
    return found


def _answer_tokens(config: Config) -> int | None:
    prompt = config.prompts.max_prompt_tokens
    return None if prompt is None else prompt + config.sampling.tokens_of_turns()[-1]


def _quantized(model: ModelFacts) -> str:
    return "" if model.quantization == "none" else f" in {model.quantization}"

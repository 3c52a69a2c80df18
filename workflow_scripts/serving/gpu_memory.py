"""Whether a model fits on the GPUs of a server, and what is left for answers: arithmetic before anything is loaded.

SGLang takes `mem-fraction-static` of each GPU for weights and caches. Hybrid models split what the weights leave
between state slots and cache (mamba-full-memory-ratio, 0.9), and need several slots for a request where prefixes are
cached (sglang/srt/mem_cache/kv_cache_configurator.py of 0.5.23).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workflow_scripts.machine import Device
from workflow_scripts.serving.model_facts import ModelFacts

MEBI = 1 << 20
# What SGLang leaves free unless told: 10 GiB on cards of more than 60, and about a seventh of smaller ones.
LARGE_MEBIBYTES, KEPT_MEBIBYTES, KEPT_SHARE = 60 * 1024, 10 * 1024, 0.15
STATE_SHARE = 0.9 / 1.9
SLOTS = {"no_buffer": 3, "extra_buffer_lazy": 4, "extra_buffer": 5}
ANSWER_TOKENS = 4096  # where nothing says how long answers can be
MOST_GPUS = 16


@dataclass(frozen=True)
class Fit:
    """How a model lies on a server's GPUs, in bytes over all of them; `tokens` and `slots` are of its caches."""

    weights: int
    usable: int
    tokens: int | None
    slots: int | None
    seats: int | None  # whole answers at once
    problem: str | None

    def line(self) -> str:
        """For the log: what goes where."""
        if not self.usable:
            return f"weights {_gb(self.weights)} GB; the card doesn't tell its memory"
        parts = [f"weights {_gb(self.weights)} of {_gb(self.usable)} GB"]
        if self.tokens is not None:
            parts.append(f"room for about {self.tokens:,} tokens")
        if self.slots is not None:
            parts.append(f"{self.slots:,} state slots")
        if self.seats is not None:
            parts.append(f"about {self.seats:,} whole answers at once")
        return ", ".join(parts)


def fit(model: ModelFacts, devices: Sequence[Device], flags: Mapping[str, Any], answer: int | None = None) -> Fit:
    """How the model fits on one server's devices with these flags; `answer` is tokens of a prompt and its answer.

    SGLang starts with a cache smaller than the context length, and then refuses what is longer than the cache.
    """
    if not all(device.mebibytes for device in devices):
        return Fit(model.weights, 0, None, None, None, None)
    room = len(devices) * min(usable(device, flags) for device in devices)  # each takes an equal part
    left = room - model.weights
    if left <= 0:
        return Fit(model.weights, room, None, None, None, _too_large(model, devices, flags))
    longest = _asked(flags) or answer
    tokens, slots, seats = _caches(model, flags, left, answer or ANSWER_TOKENS)
    problem = None
    if tokens is not None and longest is not None and tokens < longest:
        problem = (
            f"beside the weights there is room for about {tokens:,} tokens, and one conversation may have {longest:,}: "
            f"set servers.args.context-length to {tokens // 1024 * 1024} or less, or give a server more GPUs "
            f"(servers.gpus_per_server)"
        )
    if slots is not None and slots < 1:
        problem = "beside the weights there is no room for one state slot: give a server more GPUs"
    return Fit(model.weights, room, tokens, slots, seats, problem)


def usable(device: Device, flags: Mapping[str, Any]) -> int:
    """Bytes of a device that SGLang takes for weights and caches."""
    share = flags.get("mem-fraction-static")
    if isinstance(share, int | float) and not isinstance(share, bool):
        return int(device.mebibytes * float(share)) * MEBI
    large = device.mebibytes > LARGE_MEBIBYTES
    kept = KEPT_MEBIBYTES if large else int(device.mebibytes * KEPT_SHARE)
    return (device.mebibytes - kept) * MEBI


def _asked(flags: Mapping[str, Any]) -> int | None:
    asked = flags.get("context-length")
    return asked if isinstance(asked, int) and not isinstance(asked, bool) else None


def _caches(
    model: ModelFacts, flags: Mapping[str, Any], left: int, answer: int
) -> tuple[int | None, int | None, int | None]:
    """Tokens, state slots, and how many answers of `answer` tokens that is at once."""
    slots = None
    if model.state is not None:
        share = flags.get("mamba-full-memory-ratio")
        ratio = float(share) if isinstance(share, int | float) and share > 0 else None
        for_state = int(left * (ratio / (1 + ratio) if ratio else STATE_SHARE))
        slots, left = for_state // model.state, left - for_state
    if model.kv_token is None:
        return None, slots, None
    width = 1 if str(flags.get("kv-cache-dtype", "auto")).startswith(("fp8", "mxfp8")) else 2
    tokens = left // (model.kv_token * width // 2)
    seats = tokens // max(1, answer)
    if slots is not None:
        seats = min(seats, slots // slots_per_request(flags))
    return tokens, slots, seats


def slots_per_request(flags: Mapping[str, Any]) -> int:
    """State slots that a request takes: one without the cache of prefixes."""
    if flags.get("disable-radix-cache"):
        return 1
    return SLOTS.get(str(flags.get("mamba-radix-cache-strategy")), SLOTS["extra_buffer"])


def _too_large(model: ModelFacts, devices: Sequence[Device], flags: Mapping[str, Any]) -> str:
    one = min(usable(device, flags) for device in devices)
    needed = next((n for n in _splits(model) if n > len(devices) and model.weights < n * one * 0.95), None)
    advice = f"set servers.gpus_per_server: {needed}" if needed else "choose a smaller or a quantized model"
    what = "GPU" if devices[0].instance is None else "MIG instance"
    return (
        f"the model's weights take {_gb(model.weights)} GB, and {len(devices)} {what}{'s' * (len(devices) > 1)} of a "
        f"server can give {_gb(one * len(devices))} GB: {advice}"
    )


def _splits(model: ModelFacts) -> list[int]:
    """Numbers of GPUs over which the model's attention heads can be split."""
    return [n for n in (1 << power for power in range(MOST_GPUS.bit_length())) if _can_split(model, n)]


def _can_split(model: ModelFacts, gpus: int) -> bool:
    """Heads of keys and values are split too, or each is copied to as many GPUs (sglang/srt/models/qwen3.py)."""
    heads, kv_heads = model.heads, model.kv_heads
    if heads is None or heads % gpus:
        return heads is None
    return kv_heads is None or kv_heads % gpus == 0 or gpus % kv_heads == 0


def heads_problem(model: ModelFacts, gpus: int) -> str | None:
    """Why tensor parallelism over `gpus` can't be; None where it can."""
    if _can_split(model, gpus):
        return None
    good = ", ".join(str(n) for n in _splits(model))
    keys = f" ({model.kv_heads} of keys and values)" if model.kv_heads not in (None, model.heads) else ""
    return f"{model.heads} attention heads{keys} can't be split over {gpus} GPUs; take one of {good}"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f}"

"""What a prompt is sampled with: as the config says for its source, drawn by its id where the config lets it vary."""

import hashlib
from typing import Any

from workflow_scripts.config import Sampling
from workflow_scripts.config.generation import THINKING_KWARG, Weighted
from workflow_scripts.records import Prompt

TURN_SEEDS = 64  # sampling.n at most: turn t of sample s has the seed + s + 64 t


def settings(sampling: Sampling, prompt: Prompt, sample: int) -> dict[str, Any]:
    """The sampling part of a request's body, the same for all turns of a conversation but for the seed.

    It depends on sampling.seed, the prompt's id and the sample, on nothing else.
    """
    source = prompt["source"]

    def drawn(key: str) -> Any:
        return _draw(sampling.of(source, key), f"{sampling.seed} {key} {prompt['prompt_id']}", sample)

    body: dict[str, Any] = {key: drawn(key) for key in ("temperature", "top_p", "max_tokens")}
    for key in ("top_k", "reasoning_effort"):
        if (value := drawn(key)) is not None:
            body[key] = value
    kwargs = dict(sampling.of(source, "template"))
    if (thinking := drawn("thinking")) is not None:
        kwargs[THINKING_KWARG] = thinking
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    choice = sampling.of(source, "tool_choice")
    if choice is not None and prompt["tools"]:
        named = choice not in ("auto", "required", "none")
        body["tool_choice"] = {"type": "function", "function": {"name": choice}} if named else choice
    return body


def seed(sampling: Sampling, sample: int, turn: int) -> int:
    """Each sample and turn has its own: where a server honours seeds, equal ones would give equal answers."""
    return sampling.seed + sample + TURN_SEEDS * turn


def _draw(setting: Any, key: str, sample: int) -> Any:
    if isinstance(setting, list):
        return setting[(_number(key) + sample) % len(setting)]
    if isinstance(setting, Weighted):
        left = _number(f"{key} {sample}") / 2**64 * sum(setting.weights)
        for value, weight in zip(setting.values, setting.weights, strict=True):
            left -= weight
            if left < 0:
                return value
        return setting.values[-1]  # rounding
    return setting


def _number(key: str) -> int:
    """64 evenly spread bits."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")

"""Which flags are tried: the servers as they are, Draftmill's own list, and the user's."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.serving import launch

AS_IS = "as_is"

# What is worth trying for any model; SGLang's own guide to it: docs/advanced_features/hyperparameter_tuning.md.
USUAL: dict[str, dict[str, Any]] = {
    "radix_off": {"disable-radix-cache": True},
    "running_64": {"max-running-requests": 64},
    "running_128": {"max-running-requests": 128},
    "running_256": {"max-running-requests": 256},
    "prefill_2048": {"chunked-prefill-size": 2048},
    "prefill_8192": {"chunked-prefill-size": 8192},
    "eager": {"schedule-conservativeness": 0.3},
    "careful": {"schedule-conservativeness": 1.3},
    "prefix_first": {"schedule-policy": "lpm"},
}
ON_GPUS: dict[str, dict[str, Any]] = {"memory_90": {"mem-fraction-static": 0.9}}
# Of hybrid models the strategy decides how many state slots a request takes, and so how many run at once.
OF_HYBRIDS: dict[str, dict[str, Any]] = {
    name: {"disable-radix-cache": False, "mamba-radix-cache-strategy": name}
    for name in ("no_buffer", "extra_buffer", "extra_buffer_lazy")
}
ON_CPU: dict[str, dict[str, Any]] = {
    "radix_off": {"disable-radix-cache": True},
    "running_4": {"max-running-requests": 4},
    "running_32": {"max-running-requests": 32},
    "running_64": {"max-running-requests": 64},
}


@dataclass(frozen=True)
class Candidate:
    """A name for the table, and flags of speed that are laid over `servers.args`."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)


def laid_over(config: Config, candidate: Candidate) -> Config:
    """The config with the candidate's flags over `servers.args`."""
    servers = config.servers.model_copy(update={"args": {**config.servers.args, **candidate.args}})
    return config.model_copy(update={"servers": servers})


def listing(config: Config, hybrid: bool, flags_of: Callable[[Config], Mapping[str, Any]]) -> list[Candidate]:
    """Every candidate, the servers as they are first; of several that start the same server, only the first.

    `flags_of` tells a server's whole flags under a config, or raises PlainError: such a candidate stays, as a row that
    says why it can't start. PlainError where two candidates have one name.
    """
    found = [Candidate(AS_IS), *_users(config)]
    if config.tune.usual:
        usual = (
            ON_CPU if config.servers.engine == "sglang-cpu" else {**(OF_HYBRIDS if hybrid else {}), **USUAL, **ON_GPUS}
        )
        found += [Candidate(name, args) for name, args in usual.items()]
    names = [candidate.name for candidate in found]
    for name in names:
        if names.count(name) > 1:
            raise PlainError(f"tune.candidates: two are called {name!r}; give one another name")
    return _distinct(config, found, flags_of)


def together(better: Iterable[Candidate], tried: Iterable[Candidate]) -> Candidate | None:
    """The flags of several at once; of those that set the same flag only the first. None if that is nothing new."""
    args: dict[str, Any] = {}
    names = []
    for candidate in better:
        if not args.keys() & candidate.args.keys():
            args |= candidate.args
            names.append(candidate.name)
    new = len(names) > 1 and all(args != candidate.args for candidate in tried)
    return Candidate(" + ".join(names), args) if new else None


def _users(config: Config) -> list[Candidate]:
    return [Candidate(said.name or name_of(said.args), said.args) for said in config.tune.candidates]


def name_of(args: Mapping[str, Any]) -> str:
    """Flags as a name: `max-running-requests 8, without disable-radix-cache`."""
    parts = []
    for name, value in args.items():
        words = launch.words({name: value})
        parts.append(" ".join([name, *words[1:]]) if words else f"without {name}")
        if words and "=" in words[0]:
            parts[-1] = words[0].removeprefix("--")
    return ", ".join(parts)


def _distinct(
    config: Config, candidates: list[Candidate], flags_of: Callable[[Config], Mapping[str, Any]]
) -> list[Candidate]:
    kept: dict[str, Candidate] = {}
    for candidate in candidates:
        try:
            flags = flags_of(laid_over(config, candidate))
            started = {name: value for name, value in flags.items() if value is not None and value is not False}
            key = json.dumps(started, sort_keys=True, default=str)
        except PlainError:
            key = candidate.name
        kept.setdefault(key, candidate)
    return list(kept.values())

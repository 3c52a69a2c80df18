"""Which flags a server on these GPUs gets for this model: the first lines of gpu_flags.yaml that fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from workflow_scripts.config import Config
from workflow_scripts.machine import Device
from workflow_scripts.serving.model_facts import ModelFacts

PATH = Path(__file__).with_name("gpu_flags.yaml")

Trait = Literal["moe", "hybrid", "mla", "sparse", "sinks", "multimodal"]


class _Mapping(BaseModel):
    """A mapping of the table: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class When(_Mapping):
    """What must hold for a line, all of it."""

    sm: tuple[int, int] | None = None
    traits: list[Trait] = Field(default_factory=list)
    model_type: list[str] = Field(default_factory=list)
    quantization: list[str] = Field(default_factory=list)
    template: list[str] = Field(default_factory=list)
    repeats: bool | None = None
    unless: list[str] = Field(default_factory=list)


class Line(_Mapping):
    """A flag's value (null: SGLang's own), or values that can't work, where `when` holds."""

    flag: str
    value: bool | int | float | str | None = None
    refused: list[str] = Field(default_factory=list)
    when: When = When()
    why: str
    source: str

    @model_validator(mode="after")
    def _one(self) -> "Line":
        if self.refused and self.value is not None:
            raise ValueError("a line gives a value or refuses some")
        return self


@dataclass(frozen=True)
class Choice:
    """The flags that the table gives, and for each the reason."""

    flags: dict[str, Any]
    reasons: dict[str, str]


@cache
def table() -> list[Line]:
    """gpu_flags.yaml."""
    return [Line.model_validate(line) for line in yaml.safe_load(PATH.read_text(encoding="utf-8"))]


def choose(config: Config, model: ModelFacts, device: Device) -> Choice:
    """The flags that servers.args leaves open, as the table has them for this card and model."""
    fitting = [line for line in table() if not line.refused and fits(line.when, config, model, device)]
    first: dict[str, Line] = {}
    for line in fitting:
        first.setdefault(line.flag, line)
    taken = [line for line in first.values() if line.value is not None and line.flag not in config.servers.args]
    return Choice({line.flag: line.value for line in taken}, {line.flag: line.why for line in taken})


def refused(args: Mapping[str, Any], config: Config, model: ModelFacts, device: Device) -> list[str]:
    """A line for each flag of servers.args whose value can't work on this card."""
    card = f"{device.gpu.name} (SM{device.gpu.sm})"
    return [
        f"servers.args.{line.flag}: {args[line.flag]} does not work on {card}: {line.why}"
        for line in table()
        if str(args.get(line.flag)) in line.refused and fits(line.when, config, model, device)
    ]


def fits(when: When, config: Config, model: ModelFacts, device: Device) -> bool:
    """Whether a line is for this card, model and work."""
    return (
        (when.sm is None or when.sm[0] <= device.gpu.sm <= when.sm[1])
        and set(when.traits) <= model.traits
        and (not when.model_type or model.model_type in when.model_type)
        and (not when.quantization or model.quantization in when.quantization)
        and all(words in (model.template or "") for words in when.template)
        and not any(config.servers.args.get(flag) for flag in when.unless)
        and (when.repeats is None or when.repeats == (config.sampling.n > 1 or config.prompts.turns == "all"))
    )

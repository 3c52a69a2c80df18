"""The typed config: what a user may write, with defaults, one plain line per mistake, and the JSON Schema.

fields       the kinds of values
sources      datasets, and how rows are read
prompts      the mix and its chunks
generation   model, sampling, servers
limits       patience and alarms of the engine
tuning       flags of the servers that are tried
outputs      publishing, training
mistakes     what is wrong with a config, in words
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from workflow_scripts.config import mistakes
from workflow_scripts.config.fields import HomePath, Name, Scalar, Section
from workflow_scripts.config.generation import Model, Sampling, Servers
from workflow_scripts.config.limits import Limits
from workflow_scripts.config.outputs import Publish, Training
from workflow_scripts.config.prompts import MOST_CHUNKS, Chunks, Decontaminate, Dedupe, Prompts
from workflow_scripts.config.sources import Columns, Reading, Shape, Source
from workflow_scripts.config.tuning import Tune
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import catalogue

__all__ = [
    "Chunks",
    "Columns",
    "Config",
    "Decontaminate",
    "Dedupe",
    "Limits",
    "Model",
    "Prompts",
    "Publish",
    "Reading",
    "Sampling",
    "Scalar",
    "Section",
    "Servers",
    "Shape",
    "Source",
    "Training",
    "Tune",
    "load_yaml",
    "parse",
    "schema",
]

RESERVED = ("sources",)  # folders of `results` that are no run's


class Config(Section):
    """A run, whole."""

    name: Name = Field(description="the run's name: [a-z0-9][a-z0-9_]*, 64 characters at most")
    results: HomePath = Field("results", description="the folder that everything goes to")
    sources: dict[Name, Source] = Field(min_length=1, description="the mix; earlier sources win duplicates")
    prompts: Prompts = Field(default_factory=Prompts)
    chunks: Chunks = Field(default_factory=Chunks)
    model: Model
    sampling: Sampling = Field(default_factory=Sampling)
    servers: Servers = Field(default_factory=Servers)
    limits: Limits = Field(default_factory=Limits)
    tune: Tune = Field(default_factory=Tune)
    publish: Publish = Field(default_factory=Publish)
    training: Training = Field(default_factory=Training)

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in RESERVED:
            raise ValueError(f"{name!r} is a folder of its own in `results`; choose another name")
        return name

    @field_validator("results")
    @classmethod
    def _no_wildcards(cls, results: str) -> str:
        if "{" in results or "}" in results:
            raise ValueError("holds a brace, which Snakemake takes for a wildcard; choose another folder")
        return results

    @model_validator(mode="after")
    def _hangs_together(self) -> "Config":
        self._check_stand_ins()
        self._check_by_source()
        context = self.servers.args.get("context-length")
        most = self.sampling.tokens_of_turns()[-1]
        if isinstance(context, int) and most >= context:
            raise ValueError(
                f"sampling.max_tokens ({most}) leaves no room for a prompt in servers.args.context-length ({context})"
            )
        if self.model.tokenizer == "none":
            for key, given in (
                ("prompts.max_prompt_tokens", self.prompts.max_prompt_tokens is not None),
                ("prompts.turns: all", self.prompts.turns == "all"),
                ("training.answers: recorded", self.training.answers == "recorded"),
            ):
                if given:
                    raise ValueError(f"{key} needs a tokenizer, and model.tokenizer is none; leave one out")
        if self.training.answers == "recorded" and self.publish.store != "none":
            raise ValueError(
                "training.answers: recorded exports off-policy rows, and a run's prefix in a store is for what its "
                "model answered; set publish.store: none, and copy the training folder yourself"
            )
        total = self.prompts.total
        takes = [source.take for source in self.sources.values() if source.take != "all"]
        if (
            total is not None
            and len(takes) == len(self.sources)
            and total > sum(takes)
            and not self.prompts.fill
            and not self.prompts.allow_short
        ):
            raise ValueError(
                f"prompts.total ({total}) is more than the sources' takes together ({sum(takes)}); "
                f"take more, name prompts.fill, or set prompts.allow_short: true"
            )
        if (chunks := self.chunk_count()) > MOST_CHUNKS:
            raise ValueError(f"that is {chunks:,} chunks, and {MOST_CHUNKS:,} are the most; give a larger chunks.size")
        return self

    def _check_by_source(self) -> None:
        stand_ins = (name for source in self.sources.values() for name in source.substitutes)
        known = {*self.sources, *stand_ins, *self.prompts.fill}
        named = [("sampling.by_source", name) for name in self.sampling.by_source]
        named += [("training.source_rows", name) for name in self.training.source_rows]
        for key, name in named:
            if name not in known:
                raise ValueError(f"{key}.{name}: no such source; there is {', '.join(sorted(known))}")

    def _check_stand_ins(self) -> None:
        """A manifest tells shards by name, so that one name must mean one dataset, read in one way."""
        known = {name: source.reading() for name, source in self.sources.items()}
        for source, itself in known.items():
            for name, reading in self.sources[source].substitutes.items():
                if name == source or reading == itself:
                    raise ValueError(f"sources.{source}.substitutes: {name!r} is the same dataset again; name others")
        for readings in [*(source.substitutes for source in self.sources.values()), self.prompts.fill]:
            for name, reading in readings.items():
                if name not in self.sources and reading.dataset is None:
                    raise ValueError(f"{name!r} stands in with local files: make it a source, and name that")
                if known.setdefault(name, reading) != reading:
                    raise ValueError(f"{name!r} means two datasets, or one read in two ways; give one another name")

    def chunk_count(self) -> int:
        """The number of chunks, known before any source is read."""
        if self.chunks.count is not None:
            return self.chunks.count
        numeric = [source.take for source in self.sources.values() if source.take != "all"]
        takes = sum(numeric)
        if self.prompts.total is None and len(numeric) < len(self.sources):
            return 32
        wanted = takes if self.prompts.total is None else self.prompts.total
        if len(numeric) == len(self.sources) and not self.prompts.fill:
            wanted = min(wanted, takes)
        return -(-wanted // self.chunks.size)


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping; PlainError names the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
        value = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise PlainError(f"{path}: no such config file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlainError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise PlainError(f"{path}: must be a mapping of keys to values")
    refuse_doubled_keys(text, str(path))
    return value


def refuse_doubled_keys(text: str, where: str) -> None:
    """PlainError if a mapping of the YAML has a key twice: YAML would take the last and lose the others in silence."""
    if lines := [f"{where}: {key} stands twice; the first would be lost" for key in _doubled(yaml.compose(text))]:
        raise PlainError("\n".join(lines))


def _doubled(node: yaml.Node | None, at: str = "") -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            name = f"{at}{key.value}"
            if name in seen:
                yield f"{name} (line {key.start_mark.line + 1})"
            seen.add(name)
            yield from _doubled(value, f"{name}.")
    elif isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from _doubled(one, at)


def parse(values: dict[str, Any], where: str) -> Config:
    """The typed config. PlainError holds one line per mistake, each `where: key: what is wrong`."""
    if lines := [f"{where}: {line}" for line in mistakes.no_json(values)]:
        raise PlainError("\n".join(lines))
    try:
        return Config.model_validate(catalogue.expand(values, where))
    except ValidationError as error:
        raise PlainError("\n".join(mistakes.lines(error, Config, where))) from error


def schema() -> dict[str, Any]:
    """The JSON Schema of the config, for editors: config/schema.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}

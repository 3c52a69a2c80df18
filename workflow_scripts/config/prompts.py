"""`prompts` and `chunks`: from the sources' shards to the manifest, and how it is cut."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from workflow_scripts.config.fields import Count, HomePath, Name, Section, Seed, Text
from workflow_scripts.config.sources import Reading, or_names

MOST_CHUNKS = 100_000


class Dedupe(Section):
    """What counts as the same prompt."""

    exact: bool = Field(True, description="drop prompts whose text repeats an earlier one (case and spacing aside)")
    near: Annotated[float, Field(gt=0, le=1, strict=True)] | Literal[False] = Field(
        False, description="drop prompts whose text is as similar as this to an earlier one: a Jaccard threshold"
    )


class Decontaminate(Section):
    """Which prompts hold what a benchmark asks (see prompts/decontaminate.py)."""

    files: list[HomePath] = Field(
        default_factory=list, description="benchmarks: files, folders or globs; .jsonl, .json, .parquet, .csv, .txt"
    )
    columns: list[Text] = Field(default_factory=list, description="the columns to look for; none: all text of a row")
    ngram: Annotated[int, Field(ge=5, le=50, strict=True)] = Field(13, description="words that must stand together")
    threshold: float = Field(
        0, ge=0, le=1, strict=True, description="share of a row's n-grams that a prompt must hold; 0: one is enough"
    )

    @field_validator("files")
    @classmethod
    def _local(cls, entries: list[str]) -> list[str]:
        for entry in entries:
            if re.match(r"[a-z0-9]+:/", entry):  # Path has made one slash of two
                raise ValueError(f"{entry!r} is no path; benchmarks are files here: download it")
        return entries

    @model_validator(mode="after")
    def _of_something(self) -> "Decontaminate":
        if not self.files and self.model_fields_set - {"files"}:
            raise ValueError("`files` is missing: the benchmarks")
        return self


def _or_files(schema: dict[str, Any]) -> None:
    """For editors: a list of files will do."""
    mapping = {"$ref": schema.pop("$ref")}
    schema["anyOf"] = [{"type": "array", "items": {"type": "string"}}, mapping]


def _s3_prefix(entry: str) -> str:
    scheme, _, rest = entry.partition("://")
    if scheme != "s3":
        raise ValueError(f"{entry!r} is neither a path nor an s3:// prefix")
    if not rest.partition("/")[0]:
        raise ValueError(f"{entry!r} names no bucket: write s3://BUCKET/PREFIX/")
    return entry


class Prompts(Section):
    """From the sources' shards to the manifest."""

    total: Count | None = Field(None, description="prompts wanted in all; scales the takes down where it is less")
    fill: dict[Name, Reading] = Field(
        default_factory=dict,
        json_schema_extra=or_names,
        description="sources or catalogue entries that, in order, fill up to the total",
    )
    turns: Literal["first", "all"] = Field(
        "first",
        description="first: one answer, to what comes before the first assistant turn; all: every assistant turn",
    )
    allow_short: bool = Field(False, description="go on where the sources hold fewer prompts than asked")
    dedupe: Dedupe = Field(default_factory=Dedupe)
    max_prompt_tokens: Count | None = Field(
        None, description="longer prompts are dropped, by the target's tokenizer and chat template, tools included"
    )
    decontaminate: Decontaminate = Field(
        default_factory=Decontaminate,
        json_schema_extra=_or_files,
        description="benchmark files whose text no prompt may hold",
    )
    exclude: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="prompts not to take again: runs, folders, files, globs or s3:// prefixes of earlier ones",
    )
    eval: float = Field(0.0, ge=0, le=0.5, description="share of the prompts set apart for evaluation, by their ids")
    seed: Seed = Field(0, description="decides which rows are drawn, and their order")

    @field_validator("decontaminate", mode="before")
    @classmethod
    def _files(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f"write a list: [{value}]")
        return {"files": value} if isinstance(value, list) else value

    @field_validator("exclude")
    @classmethod
    def _places(cls, entries: list[str]) -> list[str]:
        return [str(Path(entry).expanduser()) if "://" not in entry else _s3_prefix(entry) for entry in entries]

    @model_validator(mode="after")
    def _something_to_fill(self) -> "Prompts":
        if self.fill and self.total is None:
            raise ValueError("`fill` fills up to `total`: give `total` too")
        return self


class Chunks(Section):
    """How the manifest is cut: by mean size, or into a given number of chunks."""

    size: Count = Field(500, description="prompts in a chunk, on average")
    count: Annotated[int, Field(ge=1, le=MOST_CHUNKS, strict=True)] | None = Field(None, description="number of chunks")

    @model_validator(mode="after")
    def _one_of(self) -> "Chunks":
        if "size" in self.model_fields_set and self.count is not None:
            raise ValueError("give `size` or `count`, not both")
        return self

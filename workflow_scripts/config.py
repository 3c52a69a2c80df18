"""The typed config: what a user may write, with defaults, one plain line per mistake, and the JSON Schema."""

import argparse
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from workflow_scripts import config_errors, files
from workflow_scripts.config_errors import DATASET, NAME
from workflow_scripts.errors import PlainError
from workflow_scripts.records import TurnClass
from workflow_scripts.sources import catalogue

KEPT: tuple[TurnClass, ...] = ("complete", "tool_call", "cut_in_answer")
SECRET_WORDS = ("key", "token", "secret", "password", "credential")
# SGLang's flags that have such a word in their names and are no secret.
NOT_SECRET = re.compile(r"(^|-)tokens?-|max-.*-tokens?$|-tokens$|tokenizer|token-step|keep-")

INT64 = 2**63
EMBEDDED_MODELS = ("embedded:SmolLM2-135M-Instruct",)
RESERVED = ("sources",)  # folders of `results` that are no run's

Name = Annotated[str, Field(pattern=NAME)]
HomePath = Annotated[str, Field(min_length=1), AfterValidator(lambda path: str(Path(path).expanduser()))]
Seed = Annotated[int, Field(ge=-INT64, lt=INT64 - 64, strict=True)]  # 64: room for a seed of each sample
Count = Annotated[int, Field(ge=1, strict=True)]
Shape = Literal[
    "messages",
    "sharegpt",
    "alternating_strings",
    "prompt_response",
    "prompt_response_system",
    "alpaca",
    "messages_json_string",
    "transcript_string",
    "tools_query_answers",
    "message_tree",
]
Scalar = str | int | float | bool | None


class Section(BaseModel):
    """A mapping of the config: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Columns(Section):
    """Which columns hold what; null where the shape's usual name is meant (see config/README.md)."""

    prompt: str | None = Field(None, description="the user's text, or the list of messages")
    response: str | None = Field(None, description="the recorded answer")
    system: str | None = Field(None, description="the system prompt")
    input: str | None = Field(None, description="further text below the instruction (alpaca)")
    tools: str | None = Field(None, description="the tools, a list or a JSON string")
    id: str | None = Field(None, description="the row's own id")


class Reading(Section):
    """Where a dataset's rows are, and how they are read: from local files, or from a repository of the hub."""

    path: HomePath | None = Field(
        None,
        description="local: a file, a folder or a glob: .parquet, .jsonl, .ndjson, .json, JSON also as .gz or .zst",
    )
    dataset: Annotated[str, Field(pattern=DATASET)] | None = Field(None, description="the hub's owner/name")
    config: Annotated[str, Field(strict=True)] | None = Field(None, description="the dataset's config, quoted")
    split: (
        Annotated[str, Field(strict=True)]
        | Annotated[list[Annotated[str, Field(strict=True)]], Field(min_length=1)]
        | None
    ) = Field(None, description="a split or a list of splits; null: `train`, or the only one")
    revision: Annotated[str, Field(strict=True)] | None = Field(
        None, description="branch, tag or commit; a full commit is best. It is looked up once for a run"
    )
    files: list[str] = Field(default_factory=list, description="files of the repository, as globs, instead of a split")
    shape: Shape | Literal["auto"] = Field("auto", description="how a row holds its conversation; auto: recognized")
    columns: Columns = Field(default_factory=Columns)
    where: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict, description="only rows whose column has this value, or one of these"
    )
    sample: Count | None = Field(None, description="an even sample of so many rows, of a source too big to keep")
    max_row_bytes: Count = Field(16 << 20, description="longer rows are rejected, and never held in memory")
    max_rejects: float = Field(0.2, ge=0, le=1, description="a larger share of rejected rows fails the source")

    @model_validator(mode="after")
    def _one_place(self) -> "Reading":
        if (self.path is None) == (self.dataset is None):
            raise ValueError("give one of `path` (local files), `dataset` (the hub) and `use` (the catalogue)")
        of_hub = [key for key in ("config", "split", "revision", "files") if getattr(self, key)]
        if self.path is not None and of_hub:
            raise ValueError(f"`{of_hub[0]}` is for datasets of the hub; with `path` leave it out")
        if self.files and (self.config or self.split):
            raise ValueError("give `files`, or `config` and `split`, not both")
        return self


def _or_names(schema: dict[str, Any]) -> None:
    """For editors: a list of names will do, which is expanded before the types are checked."""
    mapping = {key: schema.pop(key) for key in ("type", "additionalProperties", "propertyNames") if key in schema}
    schema["anyOf"] = [{"type": "array", "items": {"type": "string"}}, mapping]


class Source(Reading):
    """One dataset of the mix."""

    use: str | None = Field(None, description="a catalogue entry, whose values hold where nothing is said here")
    take: Count | Literal["all"] = Field("all", description="prompts wanted; `all` takes every usable one")
    substitutes: dict[Name, Reading] = Field(
        default_factory=dict,
        json_schema_extra=_or_names,
        description="other sources or catalogue entries, in order, for where this one can't be read or falls short",
    )

    def reading(self) -> Reading:
        """The source without what the mix wants of it."""
        return Reading(**{key: getattr(self, key) for key in Reading.model_fields})


class Dedupe(Section):
    """What counts as the same prompt."""

    exact: bool = Field(True, description="drop prompts whose text repeats an earlier one (case and spacing aside)")


class Prompts(Section):
    """From the sources' shards to the manifest."""

    total: Count | None = Field(None, description="prompts wanted in all; scales the takes down where it is less")
    fill: dict[Name, Reading] = Field(
        default_factory=dict,
        json_schema_extra=_or_names,
        description="sources or catalogue entries that, in order, fill up to the total",
    )
    allow_short: bool = Field(False, description="go on where the sources hold fewer prompts than asked")
    dedupe: Dedupe = Field(default_factory=Dedupe)
    seed: Seed = Field(0, description="decides which rows are drawn, and their order")

    @model_validator(mode="after")
    def _something_to_fill(self) -> "Prompts":
        if self.fill and self.total is None:
            raise ValueError("`fill` fills up to `total`: give `total` too")
        return self


class Chunks(Section):
    """How the manifest is cut: by mean size, or into a given number of chunks."""

    size: Count | None = Field(None, description="prompts in a chunk, on average (default 500)")
    count: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = Field(None, description="number of chunks")

    @model_validator(mode="after")
    def _one_of(self) -> "Chunks":
        if self.size is not None and self.count is not None:
            raise ValueError("give `size` or `count`, not both")
        return self


class Model(Section):
    """The target model."""

    path: HomePath = Field(description="a hub id, a local folder, or embedded:SmolLM2-135M-Instruct")
    revision: str | None = Field(None, description="the hub id's revision; a full commit is best")

    @field_validator("path")
    @classmethod
    def _known(cls, path: str) -> str:
        if path.startswith("embedded:") and path not in EMBEDDED_MODELS:
            raise ValueError(f"there is no {path}; there is {', '.join(EMBEDDED_MODELS)}")
        return path


class Sampling(Section):
    """How the target model answers."""

    temperature: float = Field(0.7, ge=0, le=2)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    max_tokens: Count = Field(4096, description="output tokens of a turn at most, thinking included")
    thinking: bool | None = Field(None, description="sent to the template as enable_thinking; null sends nothing")
    n: Annotated[int, Field(ge=1, le=64, strict=True)] = Field(1, description="answers per prompt")
    seed: Seed = Field(0, description="recorded and sent; a server honours it only under deterministic inference")


Arg = bool | int | float | str | list[str] | None


class Servers(Section):
    """The model servers: launched here, one per GPU, or running already at `urls`."""

    engine: Literal["sglang", "sglang-cpu"] = Field(
        "sglang", description="what is built and launched; sglang needs servers.urls so far"
    )
    count: Count | Literal["auto"] = Field("auto", description="servers to launch; auto: one per gpus_per_server GPUs")
    gpus_per_server: Count = Field(1, description="GPUs of one server")
    leases: Count | None = Field(None, description="chunk jobs that share a server; null: from seats and chunk size")
    urls: list[str] = Field(default_factory=list, description="servers that run already; nothing is launched then")
    start_timeout: Annotated[int, Field(ge=1)] = Field(1800, description="seconds until a server must answer")
    drain: Annotated[int, Field(ge=0)] = Field(60, description="seconds that Ctrl-C waits for answers in flight")
    args: dict[str, Arg] = Field(default_factory=dict, description="SGLang's flags, without the leading --")

    @field_validator("args")
    @classmethod
    def _no_secrets(cls, args: dict[str, Arg]) -> dict[str, Arg]:
        for name in args:
            if name.startswith("-") or "_" in name:
                raise ValueError(f"write the flag {name!r} as {name.lstrip('-').replace('_', '-')!r}")
            if any(word in name.split("-") for word in SECRET_WORDS) and not NOT_SECRET.search(name):
                raise ValueError(f"{name!r} looks like a secret; secrets come from the environment only")
        return args

    @field_validator("urls")
    @classmethod
    def _plain_urls(cls, urls: list[str]) -> list[str]:
        return [_check_url(url) for url in urls]


class Publish(Section):
    """Where finished files go."""

    store: Literal["none", "embedded", "s3"] = Field("none", description="embedded: a real S3 server started here")
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] | None = None
    prefix: str = Field("", description="folder in the bucket; objects go to PREFIX/RUN/...")
    endpoint_url: str | None = Field(None, description="an S3 server other than AWS")
    region: str | None = None
    protect: list[str] = Field(
        default_factory=list, description="prefixes that nothing may be written at, above or below"
    )

    @field_validator("endpoint_url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        return None if url is None else _check_url(url)

    @field_validator("prefix")
    @classmethod
    def _folder(cls, prefix: str) -> str:
        if prefix.startswith("/") or ".." in prefix.split("/") or "//" in prefix:
            raise ValueError(f"{prefix!r} is no prefix: write it as folder/ or folder/folder/")
        return prefix if not prefix or prefix.endswith("/") else prefix + "/"

    @model_validator(mode="after")
    def _safe(self) -> "Publish":
        if self.store != "none" and self.bucket is None:
            raise ValueError("`bucket` is missing")
        if self.store != "none":
            for protected in self.protect:
                wall = protected.strip("/") + "/"
                if not wall.strip("/"):
                    raise ValueError("`protect` holds an empty prefix: it would protect the whole bucket")
                if self.prefix.startswith(wall) or (self.prefix and wall.startswith(self.prefix)):
                    raise ValueError(f"prefix {self.prefix!r} meets the protected prefix {protected!r}; choose another")
        return self


class Training(Section):
    """Which turns become training rows."""

    max_tokens: Count = Field(4096, description="longer rows are cut at the right")
    min_supervised_tokens: Count = Field(32, description="rows with fewer are dropped; two blocks of 16")
    keep: list[TurnClass] = Field(list(KEPT), description="classes of turns to keep")


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
        context = self.servers.args.get("context-length")
        if isinstance(context, int) and self.sampling.max_tokens >= context:
            raise ValueError(
                f"sampling.max_tokens ({self.sampling.max_tokens}) leaves no room for a prompt in "
                f"servers.args.context-length ({context})"
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
        return self

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
        return -(-wanted // (self.chunks.size or 500))


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http(s) URL")
    if parts.username or parts.password:
        raise ValueError("holds a user or password; secrets come from the environment only")
    return url.rstrip("/")


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping; PlainError names the file and the line."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PlainError(f"{path}: no such config file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlainError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise PlainError(f"{path}: must be a mapping of keys to values")
    return value


def parse(values: dict[str, Any], where: str) -> Config:
    """The typed config. PlainError holds one line per mistake, each `where: key: what is wrong`."""
    try:
        return Config.model_validate(catalogue.expand(values, where))
    except ValidationError as error:
        raise PlainError("\n".join(config_errors.lines(error, Config, where))) from error


def schema() -> dict[str, Any]:
    """The JSON Schema of the config, for editors: config/schema.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


def main() -> None:
    """Write config/schema.json."""
    parser = argparse.ArgumentParser(description="Write the JSON Schema of the config, from its types.")
    parser.add_argument("path", type=Path, nargs="?", default=Path("config/schema.json"), help="where to write it")
    files.write_json(parser.parse_args().path, schema())


if __name__ == "__main__":
    main()

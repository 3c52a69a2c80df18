"""`sources`: which datasets the mix is made of, and how their rows are read."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from workflow_scripts.config.fields import Count, HomePath, Name, Scalar, Section, Text
from workflow_scripts.config.mistakes import DATASET
from workflow_scripts.sources import shapes

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


class Columns(Section):
    """Which columns hold what; null where the shape's usual name is meant (see config/README.md)."""

    prompt: Text | None = Field(None, description="the user's text, or the list of messages")
    response: Text | None = Field(None, description="the recorded answer")
    system: Text | None = Field(None, description="the system prompt")
    input: Text | None = Field(None, description="further text below the instruction (alpaca)")
    tools: Text | None = Field(None, description="the tools, a list or a JSON string")
    id: Text | None = Field(None, description="the row's own id")

    @model_validator(mode="after")
    def _different(self) -> "Columns":
        key_of: dict[str, str] = {}
        for key, column in self:
            if column is not None and (other := key_of.setdefault(column, key)) != key:
                raise ValueError(f"`{other}` and `{key}` are both the column {column!r}; leave one out")
        return self


def _plainest(value: Any) -> Any:
    """One way to write what means the same, so that it is the same run: 1.0 is 1, and a list of one is that one."""
    if isinstance(value, list):
        return _plainest(value[0]) if len(value) == 1 else [_plainest(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Reading(Section):
    """Where a dataset's rows are, and how they are read: from local files, or from a repository of the hub."""

    path: HomePath | None = Field(
        None,
        description="local: a file, a folder or a glob: .parquet, .jsonl, .ndjson, .json, JSON also as .gz or .zst",
    )
    dataset: Annotated[str, Field(pattern=DATASET)] | None = Field(None, description="the hub's owner/name")
    config: Text | None = Field(None, description="the dataset's config, quoted")
    split: Annotated[Text | Annotated[list[Text], Field(min_length=1)] | None, AfterValidator(_plainest)] = Field(
        None, description="a split or a list of splits; null: `train`, or the only one"
    )
    revision: Text | None = Field(
        None, description="branch, tag or commit; a full commit is best. It is looked up once for a run"
    )
    files: list[Text] = Field(default_factory=list, description="files of the repository, as globs, instead of a split")
    shape: Shape | Literal["auto"] = Field("auto", description="how a row holds its conversation; auto: recognized")
    columns: Columns = Field(default_factory=Columns)
    where: dict[Text, Annotated[Scalar | Annotated[list[Scalar], Field(min_length=1)], AfterValidator(_plainest)]] = (
        Field(default_factory=dict, description="only rows whose column has this value, or one of these")
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
        for key in ("split", "files"):
            named = getattr(self, key)
            if isinstance(named, list) and len(set(named)) < len(named):
                raise ValueError(f"`{key}` names something twice; its rows would be read twice")
        return self

    @model_validator(mode="after")
    def _of_its_shape(self) -> "Reading":
        """Of `auto` the same is told when the rows are seen."""
        if self.shape == "auto":
            return self
        unknown = shapes.meaningless(self.shape, self.columns)
        if unknown is not None:
            raise ValueError(
                f"`columns.{unknown}` means nothing to the shape {self.shape}, which has "
                f"{', '.join(shapes.USUAL[self.shape])}; leave it out"
            )
        if self.shape == "message_tree" and self.sample is not None:
            raise ValueError(f"`sample`: {shapes.NO_SAMPLE_OF_TREES}")
        return self


def or_names(schema: dict[str, Any]) -> None:
    """For editors: a list of names will do, which is expanded before the types are checked."""
    mapping = {key: schema.pop(key) for key in ("type", "additionalProperties", "propertyNames") if key in schema}
    schema["anyOf"] = [{"type": "array", "items": {"type": "string"}}, mapping]


class Source(Reading):
    """One dataset of the mix."""

    use: str | None = Field(None, description="a catalogue entry, whose values hold where nothing is said here")
    take: Count | Literal["all"] = Field("all", description="prompts wanted; `all` takes every usable one")
    substitutes: dict[Name, Reading] = Field(
        default_factory=dict,
        json_schema_extra=or_names,
        description="other sources or catalogue entries, in order, for where this one can't be read or falls short",
    )

    def reading(self) -> Reading:
        """The source without what the mix wants of it."""
        return Reading(**{key: getattr(self, key) for key in Reading.model_fields})

"""`prompts` and `chunks`: from the sources' shards to the manifest, and how it is cut."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from workflow_scripts.config.fields import Count, Name, Section, Seed
from workflow_scripts.config.sources import Reading, or_names


class Dedupe(Section):
    """What counts as the same prompt."""

    exact: bool = Field(True, description="drop prompts whose text repeats an earlier one (case and spacing aside)")
    near: Annotated[float, Field(gt=0, le=1, strict=True)] | Literal[False] = Field(
        False, description="drop prompts whose text is as similar as this to an earlier one: a Jaccard threshold"
    )


class Prompts(Section):
    """From the sources' shards to the manifest."""

    total: Count | None = Field(None, description="prompts wanted in all; scales the takes down where it is less")
    fill: dict[Name, Reading] = Field(
        default_factory=dict,
        json_schema_extra=or_names,
        description="sources or catalogue entries that, in order, fill up to the total",
    )
    allow_short: bool = Field(False, description="go on where the sources hold fewer prompts than asked")
    dedupe: Dedupe = Field(default_factory=Dedupe)
    eval: float = Field(0.0, ge=0, le=0.5, description="share of the prompts set apart for evaluation, by their ids")
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

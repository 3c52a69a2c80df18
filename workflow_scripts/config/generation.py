"""`model`, `sampling` and `servers`: who answers, how, and on what."""

import re
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from workflow_scripts.config.fields import Count, HomePath, Name, Section, Seed, plain_url

T = TypeVar("T")

SECRET_WORDS = ("key", "token", "secret", "password", "credential")
# SGLang's flags that have such a word in their names and are no secret.
NOT_SECRET = re.compile(r"(^|-)tokens?-|max-.*-tokens?$|-tokens$|tokenizer|token-step|keep-")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
NUMBER = re.compile(r"-?\d{1,18}(\.\d+)?", re.ASCII)
EMBEDDED_MODELS = ("embedded:SmolLM2-135M-Instruct",)


class Model(Section):
    """The target model."""

    path: HomePath = Field(description="a hub id, a local folder, or embedded:SmolLM2-135M-Instruct")
    revision: str | None = Field(None, description="the hub id's revision; a full commit is best")
    tokenizer: HomePath | None = Field(
        None,
        description="a folder or hub id whose tokenizer counts prompts; null: the model's; none: nothing is counted",
    )

    @field_validator("path")
    @classmethod
    def _known(cls, path: str) -> str:
        if path.startswith("embedded:") and path not in EMBEDDED_MODELS:
            raise ValueError(f"there is no {path}; there is {', '.join(EMBEDDED_MODELS)}")
        return path


class Weighted(Section, Generic[T]):
    """Values to draw from, each as often as its weight says."""

    values: list[T] = Field(min_length=1)
    weights: list[Annotated[float, Field(gt=0)]]

    @model_validator(mode="after")
    def _one_each(self) -> "Weighted[T]":
        if len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values and {len(self.weights)} weights; give each value one")
        return self


def _kind(value: Any) -> str:
    """By its looks alone, so that a mistake is told of the kind that was meant."""
    return "(list)" if isinstance(value, list) else "(weighted)" if isinstance(value, dict | Weighted) else "(one)"


Temperature = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(gt=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class WeightedTemperatures(Weighted[Temperature]):
    """Temperatures to draw from."""


class WeightedShares(Weighted[Share]):
    """Shares to draw from."""


class WeightedCounts(Weighted[Count]):
    """Counts to draw from."""


class WeightedFlags(Weighted[Flag]):
    """True and false, to draw from."""


class WeightedEfforts(Weighted[Effort]):
    """Efforts to draw from."""


# One value for all prompts, a list that a prompt's samples go around, or a draw by weights (completions/sampling.py).
# Written out, and with names, for a generic alias can't hold a model, and a parametrized one has no readable name.
ONE, LIST, WEIGHTED, BY_KIND = Tag("(one)"), Tag("(list)"), Tag("(weighted)"), Discriminator(_kind)
SOME = Field(min_length=1)
Temperatures = Annotated[
    Annotated[Temperature, ONE] | Annotated[list[Temperature], SOME, LIST] | Annotated[WeightedTemperatures, WEIGHTED],
    BY_KIND,
]
Shares = Annotated[
    Annotated[Share, ONE] | Annotated[list[Share], SOME, LIST] | Annotated[WeightedShares, WEIGHTED], BY_KIND
]
Counts = Annotated[
    Annotated[Count, ONE] | Annotated[list[Count], SOME, LIST] | Annotated[WeightedCounts, WEIGHTED], BY_KIND
]
Flags = Annotated[
    Annotated[Flag | None, ONE] | Annotated[list[Flag], SOME, LIST] | Annotated[WeightedFlags, WEIGHTED], BY_KIND
]
Efforts = Annotated[
    Annotated[Effort | None, ONE] | Annotated[list[Effort], SOME, LIST] | Annotated[WeightedEfforts, WEIGHTED], BY_KIND
]

Kwarg = bool | int | float | str | None
THINKING_KWARG = "enable_thinking"


class Settings(Section):
    """How the target model answers prompts of one kind."""

    temperature: Temperatures = 0.7
    top_p: Shares = 0.95
    top_k: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Counts = Field(4096, description="output tokens of a turn at most, thinking included")
    thinking: Flags = Field(None, description="sent to the template as enable_thinking; null sends nothing")
    reasoning_effort: Efforts = Field(None, description="for models that know it; null sends nothing")
    tool_choice: Annotated[str, Field(min_length=1, strict=True)] | None = Field(
        None, description="auto, required, none or a tool's name, for prompts with tools; null sends nothing"
    )
    template: dict[str, Kwarg] = Field(
        default_factory=dict, description="further variables of the chat template: {preserve_thinking: true}"
    )

    @field_validator("template")
    @classmethod
    def _further(cls, template: dict[str, Kwarg]) -> dict[str, Kwarg]:
        if THINKING_KWARG in template:
            raise ValueError(f"{THINKING_KWARG} is what sampling.thinking says; set that")
        for name in ("chat_template", "messages", "tools", "add_generation_prompt"):
            if name in template:
                raise ValueError(f"{name!r} is no variable to set here")
        return template


class SettingsOfSource(Settings):
    """What is said for one source; the rest is as for all."""

    @model_serializer
    def _as_said(self) -> dict[str, Any]:
        """What is said counts, also where it is a default: it may undo what is said for all."""
        return {key: getattr(self, key) for key in Settings.model_fields if key in self.model_fields_set}


class Sampling(Settings):
    """How the target model answers."""

    n: Annotated[int, Field(ge=1, le=64, strict=True)] = Field(1, description="answers per prompt")
    seed: Seed = Field(0, description="recorded and sent; a server honours it only under deterministic inference")
    by_source: dict[Name, SettingsOfSource] = Field(
        default_factory=dict, description="by a source's name: what holds there instead"
    )

    def of(self, source: str, key: str) -> Any:
        """A setting as it holds for a source's prompts."""
        own = self.by_source.get(source)
        return getattr(own if own is not None and key in own.model_fields_set else self, key)

    def tokens_of_turns(self) -> list[int]:
        """Every `max_tokens` that a turn may have, in ascending order."""
        found: set[int] = set()
        for settings in (self, *self.by_source.values()):
            if settings is self or "max_tokens" in settings.model_fields_set:
                said = settings.max_tokens
                found.update([said] if isinstance(said, int) else said if isinstance(said, list) else said.values)
        return sorted(found)


Arg = bool | int | FiniteFloat | str | list[str] | None


def _unquoted(value: Arg) -> Arg:
    if isinstance(value, str) and NUMBER.fullmatch(value):
        number = float(value) if "." in value else int(value)
        return number if str(number) == value else value
    return value


def _no_secrets(args: dict[str, Arg]) -> dict[str, Arg]:
    for name in args:
        if name.startswith("-") or "_" in name:
            raise ValueError(f"write the flag {name!r} as {name.lstrip('-').replace('_', '-')!r}")
        if any(word in name.split("-") for word in SECRET_WORDS) and not NOT_SECRET.search(name):
            raise ValueError(f"{name!r} looks like a secret; secrets come from the environment only")
    return args


def _numbers(args: dict[str, Arg]) -> dict[str, Arg]:
    """A quoted number is one, if SGLang is told the same by it: not 007."""
    return {name: _unquoted(value) for name, value in args.items()}


Args = Annotated[dict[str, Arg], AfterValidator(_no_secrets), AfterValidator(_numbers)]


class Servers(Section):
    """The model servers: launched here, one per GPU, or running already at `urls`."""

    engine: Literal["sglang", "sglang-cpu"] = Field(
        "sglang", description="what is built and launched: SGLang on GPUs, or on the CPU"
    )
    python: HomePath | None = Field(
        None, description="the Python of an environment of your own with SGLang in it; null: the pinned one is built"
    )
    count: Count | Literal["auto"] = Field("auto", description="servers to launch; auto: one per gpus_per_server GPUs")
    gpus_per_server: Count = Field(1, description="GPUs of one server")
    leases: Count | None = Field(None, description="chunk jobs that share a server; null: from seats and chunk size")
    urls: list[str] = Field(default_factory=list, description="servers that run already; nothing is launched then")
    start_timeout: Annotated[int, Field(ge=1)] = Field(1800, description="seconds until a server must answer")
    drain: Annotated[int, Field(ge=0)] = Field(60, description="seconds that Ctrl-C waits for answers in flight")
    args: Args = Field(default_factory=dict, description="SGLang's flags, without the leading --")
    tuned: Flag = Field(False, description="lay the flags that `snakemake tune` found over args")

    @field_validator("urls")
    @classmethod
    def _plain_urls(cls, urls: list[str]) -> list[str]:
        return [plain_url(url) for url in urls]

    @model_validator(mode="after")
    def _tunable(self) -> "Servers":
        if self.tuned and self.urls:
            raise ValueError("`tuned` is for servers that are launched here, and `urls` names others; leave one out")
        return self

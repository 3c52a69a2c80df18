"""`model`, `sampling` and `servers`: who answers, how, and on what."""

import re
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, field_validator

from workflow_scripts.config.fields import Count, HomePath, Section, Seed, plain_url

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


class Sampling(Section):
    """How the target model answers."""

    temperature: float = Field(0.7, ge=0, le=2)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    max_tokens: Count = Field(4096, description="output tokens of a turn at most, thinking included")
    thinking: bool | None = Field(None, description="sent to the template as enable_thinking; null sends nothing")
    n: Annotated[int, Field(ge=1, le=64, strict=True)] = Field(1, description="answers per prompt")
    seed: Seed = Field(0, description="recorded and sent; a server honours it only under deterministic inference")


Arg = bool | int | FiniteFloat | str | list[str] | None


def _unquoted(value: Arg) -> Arg:
    if isinstance(value, str) and NUMBER.fullmatch(value):
        number = float(value) if "." in value else int(value)
        return number if str(number) == value else value
    return value


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

    @field_validator("args")
    @classmethod
    def _numbers(cls, args: dict[str, Arg]) -> dict[str, Arg]:
        """A quoted number is one, if SGLang is told the same by it: not 007."""
        return {name: _unquoted(value) for name, value in args.items()}

    @field_validator("urls")
    @classmethod
    def _plain_urls(cls, urls: list[str]) -> list[str]:
        return [plain_url(url) for url in urls]

"""What all sections are made of: the kinds of values that several of them take."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

from workflow_scripts.config.mistakes import NAME

INT64 = 2**63

Name = Annotated[str, Field(pattern=NAME)]
HomePath = Annotated[str, Field(min_length=1), AfterValidator(lambda path: str(Path(path).expanduser()))]
Seed = Annotated[int, Field(ge=-INT64, lt=INT64 - 2**20, strict=True)]  # room for a seed of each sample and turn
Text = Annotated[str, Field(min_length=1, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Scalar = str | int | FiniteFloat | bool | None


class Section(BaseModel):
    """A mapping of the config: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def plain_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http(s) URL")
    if parts.username or parts.password:
        raise ValueError("holds a user or password; secrets come from the environment only")
    return url.rstrip("/")

"""`publish` and `training`: what is made of the completions, and where it goes."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from workflow_scripts.config.fields import Count, Section, plain_url
from workflow_scripts.records import TurnClass

KEPT: tuple[TurnClass, ...] = ("complete", "tool_call", "cut_in_answer")


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
        return None if url is None else plain_url(url)

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

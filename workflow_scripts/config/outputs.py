"""`publish` and `training`: what is made of the completions, and where it goes."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from workflow_scripts.config.fields import Count, Name, Section, Text, plain_url
from workflow_scripts.records import TurnClass

Longer = Literal["right", "supervised", "drop"]
LONGER: tuple[Longer, ...] = get_args(Longer)
KEPT: tuple[TurnClass, ...] = ("complete", "tool_call", "cut_in_answer")
HEADER = re.compile(r"[a-z0-9-]+")
# What publishing sets itself, or what is a secret.
OWN_HEADERS = re.compile(
    r"authorization|cookie|host|date|expect|range|content-.*|if-.*|transfer-encoding|x-amz-(date|security-token|copy-.*|"
    r"content-.*|checksum-.*|sdk-.*|meta-.*|storage-class|server-side-encryption.*)|.*(secret|password|token|api-?key).*"
)
ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
# S3's keys have 1024 bytes; RUN has 73 at most, and the paths below it stay far below the rest.
PREFIX_BYTES = 800


def meets(folder: str, protected: str) -> bool:
    """Whether a folder (or key) lies at, above or below a protected prefix; both are taken in whole path parts."""
    one, wall = (f"{path.strip('/')}/" for path in (folder, protected))
    return one.startswith(wall) or wall.startswith(one)


def protected_by(folder: str, protect: Iterable[str]) -> str | None:
    """The first protected prefix that `folder` meets."""
    return next((protected for protected in protect if meets(folder, protected)), None)


def _is_folder(path: str) -> bool:
    """Whether a key's parts mean the same to every store: some take `.`, `..`, empty parts and `\\` as paths do."""
    return path.isprintable() and all(
        part == part.strip() and part.strip(".") and "\\" not in part for part in path.split("/")
    )


class Publish(Section):
    """Where finished files go."""

    store: Literal["none", "embedded", "s3"] = Field("none", description="embedded: a real S3 server started here")
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] | None = None
    prefix: str = Field("", description="folder in the bucket; objects go to PREFIX/RUN/...")
    endpoint_url: str | None = Field(None, description="an S3 server other than AWS")
    region: Text | None = Field(None, description="unset: as boto3 finds it")
    path_style: bool | None = Field(None, description="ENDPOINT/BUCKET/KEY; unset: everywhere but at AWS")
    storage_class: Annotated[str, Field(pattern=r"^[A-Z0-9_]+$")] | None = Field(
        None, description="of every object, such as STANDARD_IA"
    )
    kms_key: Text | None = Field(None, description="id, alias or ARN of the KMS key that encrypts the objects")
    headers: dict[str, Text] = Field(
        default_factory=dict, description="more HTTP headers, such as {x-amz-acl: bucket-owner-full-control}"
    )
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
        if prefix and not _is_folder(prefix.removesuffix("/")):
            raise ValueError(f"{prefix!r} is no prefix: write it as folder/ or folder/folder/")
        if len(prefix.encode()) > PREFIX_BYTES:
            raise ValueError(f"has {len(prefix.encode())} bytes; {PREFIX_BYTES} leave room for the rest of a key")
        return prefix if not prefix or prefix.endswith("/") else prefix + "/"

    @field_validator("protect")
    @classmethod
    def _walls(cls, protect: list[str]) -> list[str]:
        for protected in protect:
            if not protected.strip("/"):
                raise ValueError("an empty prefix would protect the whole bucket")
            if not _is_folder(protected.strip("/")) or any(sign in protected for sign in "*?["):
                raise ValueError(
                    f"{protected!r} would protect nothing: write it as folder/ or folder/folder/, without the bucket "
                    f"and without wildcards"
                )
        return protect

    @field_validator("storage_class")
    @classmethod
    def _readable(cls, storage_class: str | None) -> str | None:
        if storage_class in ARCHIVES:
            raise ValueError(f"what is in {storage_class} can't be read back to verify it or to go on; choose another")
        return storage_class

    @field_validator("headers")
    @classmethod
    def _harmless(cls, headers: dict[str, str]) -> dict[str, str]:
        lower = {name.lower(): value for name, value in headers.items()}
        for name, value in lower.items():
            if not HEADER.fullmatch(name) or not value.isprintable():
                raise ValueError(f"{name!r} is no header")
            if OWN_HEADERS.fullmatch(name):
                raise ValueError(
                    f"{name!r} is set by publishing itself, by a key of its own, or is a secret, which comes from the "
                    f"environment only"
                )
        return lower

    @model_validator(mode="after")
    def _safe(self) -> "Publish":
        if self.store != "none" and self.bucket is None:
            raise ValueError("`bucket` is missing")
        if self.store != "none":
            for protected in self.protect:
                if self.prefix and meets(self.prefix, protected):
                    raise ValueError(f"prefix {self.prefix!r} meets the protected prefix {protected!r}; choose another")
        return self


class Training(Section):
    """Which turns become training rows, and in which files."""

    answers: Literal["generated", "recorded"] = Field(
        "generated",
        description="recorded: nothing is generated; the datasets' own answers, which are off-policy, become rows",
    )
    keep: list[TurnClass] = Field(list(KEPT), description="classes of turns to keep")
    min_supervised_tokens: Count = Field(32, description="rows with fewer are dropped; two blocks of 16")
    max_tokens: Count = Field(4096, description="the window: most tokens of a row")
    longer: Longer = Field(
        "right",
        description="rows over max_tokens: cut at the right; cut so that most supervised tokens stay; or drop",
    )
    source_rows: dict[Name, Count] = Field(
        default_factory=dict, description="by a source's name: its rows at most, the first in the manifest's order"
    )
    formats: list[Literal["parquet", "jsonl", "conversations"]] = Field(
        ["parquet"], min_length=1, description="parquet and jsonl hold token ids; conversations hold text"
    )
    draft_vocabulary: Count | None = Field(
        None, description="also count the supervised tokens, and map a draft vocabulary of so many of them"
    )

"""Earlier prompts in S3: a prefix listed once for a run, and its objects as they were then."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.prompts.inputs import S3, Input, LocalFile, choose
from workflow_scripts.publishing import clients, embedded, s3_errors
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

BLOCK = 1 << 20


def kept() -> Path:
    """The folder of fetched objects, shared by runs."""
    return files.cache_home() / "exclude"


def list_prefix(run: Run, prefix: str) -> Input:
    """What lock.json says of an s3:// prefix: the objects below it that tell which prompts were taken."""
    bucket, _, start = prefix.removeprefix(S3).partition("/")
    folder = start[: start.rfind("/") + 1]
    client = _client(run)
    there = {}
    with s3_errors.plain(f"prompts.exclude: {prefix}"):
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=start):
            for item in page.get("Contents", []):
                there[item["Key"].removeprefix(folder)] = item
    try:
        chosen = choose((name for name in there if name and not name.endswith("/")), prefix)
    except PlainError as error:
        raise PlainError(f"prompts.exclude: {error}") from error
    return {
        "from": prefix,
        "objects": [
            {"name": name, "key": there[name]["Key"], "bytes": there[name]["Size"], "etag": there[name]["ETag"]}
            for name in chosen
        ],
    }


def fetch(run: Run, recorded: Input) -> list[LocalFile]:
    """The objects of a listed prefix as files: kept in DRAFTMILL_HOME/exclude by address and ETag, fetched once.

    PlainError if an object is gone or is another one than when it was listed.
    """
    bucket = recorded["from"].removeprefix(S3).partition("/")[0]
    client = _client(run)
    found = []
    for entry in recorded["objects"]:
        address = f"{S3}{bucket}/{entry['key']}"
        what = f"{client.meta.endpoint_url} {address} {entry['etag']} {entry['bytes']}"
        place = kept() / hashlib.sha256(what.encode()).hexdigest() / Path(entry["name"]).name
        if not place.exists():
            say(f"fetching {address}, {entry['bytes']:,} bytes")
            _download(client, bucket, entry, address, place)
        found.append(LocalFile(entry["name"], place))
    return found


def _download(client: "S3Client", bucket: str, entry: Input, address: str, place: Path) -> None:
    with s3_errors.plain(f"prompts.exclude: {address}"):
        reply = client.get_object(Bucket=bucket, Key=entry["key"], ChecksumMode="ENABLED")
        if (reply["ETag"], reply["ContentLength"]) != (entry["etag"], entry["bytes"]):
            raise PlainError(
                f"prompts.exclude: {address} is another object than when this run began. Put the old one back, or "
                f"start a run under another `name`"
            )
        with files.atomic_path(place) as tmp, tmp.open("wb") as out:
            for block in reply["Body"].iter_chunks(BLOCK):
                out.write(block)


def _client(run: Run) -> "S3Client":
    """A client of the store that the run publishes to; without one, boto3's own settings decide."""
    if run.config.publish.store == "embedded":
        return clients.embedded(embedded.ensure_started(run))
    with s3_errors.plain("prompts.exclude"):
        return clients.configured(run.config.publish)

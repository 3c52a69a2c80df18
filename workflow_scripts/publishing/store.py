"""A create-only view on the bucket: objects are written once, checked by the server, and never replaced or deleted."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    FlexibleChecksumError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from s3transfer.manager import TransferConfig, TransferManager

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import clients, embedded, s3_errors
from workflow_scripts.publishing.digests import MIB, Digest, Digester, digest
from workflow_scripts.records import PublishedObject
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

PART_BYTES = 16 * MIB
# S3's limit for an object in one piece is 5 GiB. The embedded store gets everything so: SeaweedFS 4.48 checks
# If-None-Match in one step with the write for PutObject, but not for CompleteMultipartUpload, where racing writers
# can all win. On loopback nothing is gained by parts anyway.
EMBEDDED_PART_BYTES = 4096 * MIB
TRIES = 3
# The object is there, or was being written by somebody: 412; 409 from a racing write; and what a multipart
# completion gets that is sent again after its first reply was lost.
TAKEN_CODES = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchUpload")
DAMAGED_CODES = ("BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch")
BROKEN_DOWNLOADS = (
    ConnectionClosedError,
    FlexibleChecksumError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)


class Taken(PlainError):
    """The key holds an object with other content; `same_run` tells whether this run wrote it, elsewhere."""

    def __init__(self, message: str, same_run: bool) -> None:
        super().__init__(message)
        self.same_run = same_run


@dataclass(frozen=True)
class Store:
    """The objects below PREFIX/RUN/ of one bucket. Paths are relative to results/RUN, on disk and here."""

    client: "S3Client"
    bucket: str
    prefix: str
    run: str
    protect: tuple[str, ...] = ()
    part_bytes: int = PART_BYTES
    if_no_answer: str = s3_errors.CHECK_NETWORK

    def key(self, path: str) -> str:
        """The key of `path`; PlainError if it would leave the run's prefix or meet a protected one."""
        if not path or not path.isprintable() or any(part in ("", ".", "..") for part in path.split("/")):
            raise PlainError(f"{path!r} is no path inside a run's folder; nothing was written")
        key = f"{self.prefix}{self.run}/{path}"
        for protected in self.protect:
            wall = protected.strip("/") + "/"
            if key.startswith(wall) or wall.startswith(f"{key}/"):
                raise PlainError(
                    f"{self.address(key)} meets the protected prefix {protected!r}; nothing was written. "
                    f"Choose another publish.prefix"
                )
        return key

    def address(self, key: str) -> str:
        """Where `key` is, for messages."""
        return f"s3://{self.bucket}/{key} at {self.client.meta.endpoint_url}"

    def create(
        self, source: Path | bytes, path: str, rows: int | None = None, sha256: str | None = None, fingerprint: str = ""
    ) -> PublishedObject:
        """Make `source` the object of `path`, or find that it is so already.

        The server checks the CRC64NVME computed here over the whole content. `sha256`, if given, is what the
        content must have. Raises Taken if the key holds anything else, PlainError for all other trouble.
        """
        key = self.key(path)
        try:
            content = digest(source)
        except OSError as error:
            raise PlainError(f"{source!s} can't be read ({error.strerror}); nothing was published") from error
        if sha256 is not None and content.sha256 != sha256:
            raise PlainError(
                f"{path} has changed since it was finished (sha256 {content.sha256}, was {sha256}); nothing was "
                f"published. Delete it and run the same line again"
            )
        metadata = {"run": self.run, "sha256": content.sha256}
        if rows is not None:
            metadata["rows"] = str(rows)
        if fingerprint:
            metadata["fingerprint"] = fingerprint
        with s3_errors.plain(self.address(key), self.if_no_answer):
            # A large file is not sent only to hear that it is there; and not every store joins its parts in one step
            # with the check, so that one that went through is looked at again.
            large = content.bytes >= self.part_bytes
            there = large and self._head(key) is not None
            if there or not self._upload(source, key, content, metadata) or large:
                self._must_be_ours(key, path, content)
        return PublishedObject(
            path=path, key=key, bytes=content.bytes, sha256=content.sha256, crc64nvme=content.crc64nvme, rows=rows
        )

    def check_create_only(self, source: bytes, path: str) -> None:
        """Create `path` again, with the content that it has: PlainError unless the store refuses."""
        key = self.key(path)
        content = digest(source)
        with s3_errors.plain(self.address(key), self.if_no_answer):
            created = self._upload(source, key, content, {"run": self.run, "sha256": content.sha256})
            head = self._head(key)
        if created:
            raise PlainError(
                f"{self.address(key)}: the store let an object be written twice (it ignores If-None-Match), so that "
                f"runs could overwrite each other. Publish to a store with conditional writes"
            )
        if head is None or head.get("ChecksumCRC64NVME") != content.crc64nvme:
            raise self._unverified(key)

    def _unverified(self, key: str) -> PlainError:
        return PlainError(
            f"{self.address(key)}: the store keeps no CRC64NVME checksum of it, so that it can't be verified. "
            f"Publish to a store that keeps them"
        )

    def _upload(self, source: Path | bytes, key: str, content: Digest, metadata: dict[str, str]) -> bool:
        """Create the object; False if there is one already. ClientError and BotoCoreError pass."""
        config = TransferConfig(
            multipart_threshold=self.part_bytes, multipart_chunksize=self.part_bytes, max_request_concurrency=4
        )
        arguments: dict[str, Any] = {"ChecksumCRC64NVME": content.crc64nvme, "Metadata": metadata}
        for attempt in range(TRIES):
            try:
                # Leaving the manager by an error cancels the parts under way and aborts their multipart upload.
                with TransferManager(self.client, config) as manager:
                    body = io.BytesIO(source) if isinstance(source, bytes) else str(source)
                    manager.upload(body, self.bucket, key, extra_args=arguments).result()
                return True
            except ClientError as error:
                code = s3_errors.code(error)
                if code in TAKEN_CODES:
                    if code in ("PreconditionFailed", "412") or self._head(key) is not None:
                        return False
                elif code not in DAMAGED_CODES:
                    raise
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _head(self, key: str) -> "HeadObjectOutputTypeDef | None":
        try:
            return self.client.head_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED")
        except ClientError as error:
            if s3_errors.code(error) in ("404", "NoSuchKey"):
                return None
            raise

    def _must_be_ours(self, key: str, path: str, content: Digest) -> None:
        """Taken unless the object under `key` is, byte for byte, what this run writes there.

        ETags are not looked at: under multipart and KMS they say nothing about the content.
        """
        head = self._head(key)
        if head is None:
            raise PlainError(f"{self.address(key)} was there and is gone: somebody deletes this run's objects")
        owner = head["Metadata"].get("run")
        found = Digest(head["ContentLength"], head["Metadata"].get("sha256", ""), head.get("ChecksumCRC64NVME", ""))
        if owner == self.run and found == content:
            return
        if owner == self.run:
            raise Taken(
                f"{self.address(key)} already holds another {path} of this run, published from another machine or "
                f"folder; nothing was overwritten. Delete the local {path} and run the same line again to take the "
                f"published one",
                same_run=True,
            )
        whose = f"an object of run {owner}" if owner else "an object that no run wrote"
        raise Taken(
            f"{self.address(key)} already holds {whose}; nothing was overwritten. Choose another publish.prefix, or "
            f"move that object away yourself",
            same_run=False,
        )

    def listing(self) -> dict[str, int]:
        """Path and size in bytes of every object of the run."""
        folder = f"{self.prefix}{self.run}/"
        found: dict[str, int] = {}
        with s3_errors.plain(self.address(folder), self.if_no_answer):
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=folder):
                for item in page.get("Contents", []):
                    path = item["Key"].removeprefix(folder)
                    if path:  # some consoles create an object for the folder itself
                        found[path] = item["Size"]
        return found

    def exists(self, path: str) -> bool:
        """Whether the bucket holds `path`."""
        key = self.key(path)
        with s3_errors.plain(self.address(key), self.if_no_answer):
            return self._head(key) is not None

    def fetch(self, path: str, to: Path) -> PublishedObject:
        """Download `path` as the file `to`, whole and verified, or not at all.

        Size and CRC64NVME must be the store's, sha256 that of the object's metadata, the run ours; else PlainError.
        """
        key = self.key(path)
        broken = ""
        for _ in range(TRIES):
            try:
                return self._download(key, path, to)
            except BROKEN_DOWNLOADS as error:
                broken = " ".join(str(error).split())
            except (BotoCoreError, ClientError) as error:
                raise PlainError(s3_errors.explain(error, self.address(key), self.if_no_answer)) from error
            except OSError as error:
                raise PlainError(f"{to} can't be written ({error.strerror})") from error
        raise PlainError(
            f"{self.address(key)}: {TRIES} downloads arrived damaged ({broken}); nothing was kept. Check the network "
            f"and run the same line again; if that does not help, the object itself is damaged"
        )

    def _download(self, key: str, path: str, to: Path) -> PublishedObject:
        with files.atomic_path(to) as tmp:
            reply = self.client.get_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED")
            metadata, checksum = reply["Metadata"], reply.get("ChecksumCRC64NVME")
            if checksum is None:
                raise self._unverified(key)
            if metadata.get("run") != self.run:
                whose = f"run {metadata['run']}" if metadata.get("run") else "no run"
                raise PlainError(
                    f"{self.address(key)} is an object of {whose}, not of {self.run}; nothing was fetched. "
                    f"Choose another publish.prefix, or move that object away yourself"
                )
            digester = Digester()
            with tmp.open("wb") as out:
                for block in reply["Body"].iter_chunks(MIB):
                    digester.add(block)
                    out.write(block)
            found = digester.digest()
            if (found.bytes, found.crc64nvme) != (reply["ContentLength"], checksum):
                raise FlexibleChecksumError(error_msg=f"got {found}, the store says CRC64NVME {checksum}")
            if found.sha256 != metadata.get("sha256"):
                raise PlainError(
                    f"{self.address(key)}: sha256 is {found.sha256}, its metadata says {metadata.get('sha256')}: "
                    f"something else than this workflow wrote it; nothing was fetched. Move that object away yourself"
                )
        rows = int(metadata["rows"]) if metadata.get("rows", "").isdigit() else None
        return PublishedObject(
            path=path, key=key, bytes=found.bytes, sha256=found.sha256, crc64nvme=found.crc64nvme, rows=rows
        )


def open_store(run: Run, attempts: int = clients.ATTEMPTS) -> Store:
    """The run's store as configured; the embedded one is started if it does not run. PlainError if it can't be."""
    publish = run.config.publish
    if publish.store == "none" or publish.bucket is None:
        raise PlainError("publish.store is none: there is nowhere to publish to; set it to s3 or embedded")
    rest = (publish.bucket, publish.prefix, run.name, tuple(publish.protect))
    if publish.store == "embedded":
        client = clients.embedded(embedded.ensure_started(run), attempts)
        return Store(client, *rest, EMBEDDED_PART_BYTES, embedded.if_no_answer(run))
    with s3_errors.plain(f"s3://{publish.bucket}"):
        return Store(clients.configured(publish, attempts), *rest)

"""A create-only view on the bucket: objects are written once, checked by the server, and never replaced or deleted."""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

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
from workflow_scripts.config.outputs import protected_by
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import clients, embedded, s3_errors, uploads
from workflow_scripts.publishing.digests import MIB, Digest, Digester, digest
from workflow_scripts.records import PublishedObject
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, HeadObjectOutputTypeDef

T = TypeVar("T")

PART_BYTES = 16 * MIB
# S3's limit for an object in one piece is 5 GiB. A store that does not check If-None-Match when it joins parts gets
# everything so, and the embedded one: SeaweedFS 4.48 checks in one step with the write for PutObject, but not for
# CompleteMultipartUpload, where racing writers can all win. On loopback nothing is gained by parts anyway.
WHOLE_BYTES = 4096 * MIB
TRIES = 5
# How long a job waits for a store that is away or overloaded, beyond the tries of one request. The embedded one does
# not come back by itself.
PATIENCE_SECONDS = 300.0
# The object is there, or was being written by somebody: 412; 409 from a racing write; and what a multipart
# completion gets that is sent again after its first reply was lost.
TAKEN_CODES = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchUpload", "InvalidPart")
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


class Damaged(PlainError):
    """What was downloaded is not what this run wrote: another's object, other bytes, or no checksum to tell by."""


@dataclass(frozen=True)
class Found:
    """What the store says of an object. `crc64nvme` is its own, the rest of `content` and `run` are metadata."""

    content: Digest
    run: str | None
    rows: int | None

    @classmethod
    def of(cls, reply: "HeadObjectOutputTypeDef | GetObjectOutputTypeDef") -> "Found":
        metadata = reply["Metadata"]
        content = Digest(reply["ContentLength"], metadata.get("sha256", ""), reply.get("ChecksumCRC64NVME", ""))
        rows = metadata.get("rows", "")
        return cls(content, metadata.get("run"), int(rows) if rows.isdigit() else None)


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
    patience: float = 0.0  # seconds

    def key(self, path: str) -> str:
        """The key of `path`; PlainError if it would leave the run's prefix or meet a protected one."""
        if not path or not path.isprintable() or any(part in ("", ".", "..") for part in path.split("/")):
            raise PlainError(f"{path!r} is no path inside a run's folder; nothing was written")
        key = self.folder + path
        if protected := protected_by(key, self.protect):
            raise PlainError(
                f"{self.address(key)} meets the protected prefix {protected!r}; nothing was written. "
                f"Choose another publish.prefix"
            )
        return key

    @property
    def folder(self) -> str:
        """PREFIX/RUN/, under which every key is."""
        return f"{self.prefix}{self.run}/"

    def address(self, key: str) -> str:
        """Where `key` is, for messages."""
        return f"s3://{self.bucket}/{key} at {self.client.meta.endpoint_url}"

    def _patiently(self, act: Callable[[], T]) -> T:
        """`act`, tried again while the store is away or overloaded, as long as patience lasts."""
        began, pause = time.monotonic(), 0.5
        while True:
            try:
                return act()
            except (BotoCoreError, ClientError) as error:
                if not s3_errors.passes(error) or time.monotonic() - began + pause > self.patience:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 20.0)

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
            if large and not there:
                self._patiently(lambda: uploads.abort_dead(self.client, self.bucket, key, [key]))
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
        if head is None or head.content.crc64nvme != content.crc64nvme:
            raise self._unverified(key)

    def _unverified(self, key: str) -> PlainError:
        return Damaged(
            f"{self.address(key)}: the store keeps no CRC64NVME checksum of it, so that it can't be verified. "
            f"Publish to a store that keeps them"
        )

    def _upload(self, source: Path | bytes, key: str, content: Digest, metadata: dict[str, str]) -> bool:
        """Create the object; False if there is one already. ClientError and BotoCoreError pass."""
        return self._patiently(lambda: self._upload_once(source, key, content, metadata))

    def _upload_once(self, source: Path | bytes, key: str, content: Digest, metadata: dict[str, str]) -> bool:
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

    def _head(self, key: str) -> Found | None:
        def ask() -> Found | None:
            try:
                return Found.of(self.client.head_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED"))
            except ClientError as error:
                if s3_errors.code(error) in ("404", "NoSuchKey"):
                    return None
                raise

        return self._patiently(ask)

    def _must_be_ours(self, key: str, path: str, content: Digest) -> None:
        """Taken unless the object under `key` is, byte for byte, what this run writes there.

        ETags are not looked at: under multipart and KMS they say nothing about the content.
        """
        found = self._head(key)
        if found is None:
            raise PlainError(f"{self.address(key)} was there and is gone: somebody deletes this run's objects")
        if found.run == self.run and found.content == content:
            return
        if found.run == self.run:
            raise Taken(
                f"{self.address(key)} already holds another {path} of this run, published from another machine or "
                f"folder; nothing was overwritten. Delete the local {path} and run the same line again to take the "
                f"published one",
                same_run=True,
            )
        whose = f"an object of run {found.run}" if found.run else "an object that no run wrote"
        raise Taken(
            f"{self.address(key)} already holds {whose}; nothing was overwritten. Choose another publish.prefix, or "
            f"move that object away yourself",
            same_run=False,
        )

    def listing(self) -> dict[str, int]:
        """Path and size in bytes of every object of the run."""

        def ask() -> dict[str, int]:
            found: dict[str, int] = {}
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.folder):
                for item in page.get("Contents", []):
                    path = item["Key"].removeprefix(self.folder)
                    if path:  # some consoles create an object for the folder itself
                        found[path] = item["Size"]
            return found

        with s3_errors.plain(self.address(self.folder), self.if_no_answer):
            return self._patiently(ask)

    def owner_of(self, key: str) -> str | None:
        """Which run wrote the object under any `key` of the bucket; None also where we may not look."""
        with s3_errors.plain(self.address(key), self.if_no_answer):
            try:
                found = self._head(key)
            except ClientError as error:
                if s3_errors.code(error) in ("403", "AccessDenied"):
                    return None
                raise
        return found.run if found else None

    def look(self, path: str) -> Found | None:
        """What the bucket holds under `path`, if anything; whatever the path, for others name objects as they like."""
        key = self.folder + path
        with s3_errors.plain(self.address(key), self.if_no_answer):
            return self._head(key)

    def holds(self, path: str, file: Path) -> bool:
        """Whether the object of `path` is, byte for byte, the local `file`."""
        found = self.look(path)
        return found is not None and found.content == digest(file)

    def fetch(self, path: str, to: Path) -> PublishedObject:
        """Download `path` as the file `to`, whole and verified, or not at all.

        Size and CRC64NVME must be the store's, sha256 that of the object's metadata, the run ours; else PlainError.
        """

        def into_file() -> PublishedObject:
            with files.atomic_path(to) as tmp, tmp.open("wb") as out:
                found = self._download(path, out)
            return PublishedObject(
                path=path,
                key=self.key(path),
                bytes=found.content.bytes,
                sha256=found.content.sha256,
                crc64nvme=found.content.crc64nvme,
                rows=found.rows,
            )

        try:
            return self._whole(path, into_file)
        except OSError as error:
            raise PlainError(f"{to} can't be written ({error.strerror})") from error

    def read(self, path: str) -> Found:
        """Download `path` and keep nothing: what it really is. PlainError as of `fetch`."""
        return self._whole(path, lambda: self._download(path, None))

    def _whole(self, path: str, download: Callable[[], T]) -> T:
        """What `download` returns, tried again where it arrives damaged."""
        key = self.key(path)
        broken = ""
        for _ in range(TRIES):
            try:
                return self._patiently(download)
            except BROKEN_DOWNLOADS as error:
                broken = " ".join(str(error).split())
            except (BotoCoreError, ClientError) as error:
                raise PlainError(s3_errors.explain(error, self.address(key), self.if_no_answer)) from error
        raise Damaged(
            f"{self.address(key)}: {TRIES} downloads arrived damaged ({broken}); nothing was kept. Check the network "
            f"and run the same line again; if that does not help, the object itself is damaged"
        )

    def _download(self, path: str, out: BinaryIO | None) -> Found:
        key = self.key(path)
        reply = self.client.get_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED")
        said = Found.of(reply)
        if not said.content.crc64nvme:
            raise self._unverified(key)
        if said.run != self.run:
            whose = f"run {said.run}" if said.run else "no run"
            raise Damaged(
                f"{self.address(key)} is an object of {whose}, not of {self.run}; nothing was fetched. "
                f"Choose another publish.prefix, or move that object away yourself"
            )
        digester = Digester()
        for block in reply["Body"].iter_chunks(MIB):
            digester.add(block)
            if out is not None:
                out.write(block)
        found = digester.digest()
        if (found.bytes, found.crc64nvme) != (said.content.bytes, said.content.crc64nvme):
            raise FlexibleChecksumError(error_msg=f"got {found}, the store says CRC64NVME {said.content.crc64nvme}")
        if found.sha256 != said.content.sha256:
            raise Damaged(
                f"{self.address(key)}: sha256 is {found.sha256}, its metadata says {said.content.sha256 or None}: "
                f"something else than this workflow wrote it; nothing was fetched. Move that object away yourself"
            )
        return said

    def joins_once(self, content: bytes, path: str) -> bool:
        """Whether the store refuses to join parts over an object: tried on `path`, which has this very content.

        PutObject and CompleteMultipartUpload are written apart in many stores; some check only the first.
        """
        key, metadata = self.key(path), {"run": self.run, "sha256": digest(content).sha256}
        client = self.client
        with s3_errors.plain(self.address(key), self.if_no_answer):
            upload = client.create_multipart_upload(
                Bucket=self.bucket, Key=key, Metadata=metadata, ChecksumAlgorithm="CRC64NVME"
            )["UploadId"]
            try:
                part = client.upload_part(
                    Bucket=self.bucket,
                    Key=key,
                    UploadId=upload,
                    PartNumber=1,
                    Body=content,
                    ChecksumAlgorithm="CRC64NVME",
                )
                client.complete_multipart_upload(
                    Bucket=self.bucket,
                    Key=key,
                    UploadId=upload,
                    MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
                )
                return False
            except ClientError as error:
                refused = s3_errors.code(error) in ("PreconditionFailed", "412")
            uploads.abort(client, self.bucket, key, upload)
            return refused


def open_store(run: Run, attempts: int = clients.ATTEMPTS, patience: float = PATIENCE_SECONDS) -> Store:
    """The run's store as configured; the embedded one is started if it does not run. PlainError if it can't be."""
    publish = run.config.publish
    if publish.store == "none" or publish.bucket is None:
        raise PlainError("publish.store is none: there is nowhere to publish to; set it to s3 or embedded")
    rest = (publish.bucket, publish.prefix, run.name, tuple(publish.protect))
    if publish.store == "embedded":
        client = clients.embedded(embedded.ensure_started(run), attempts)
        return Store(client, *rest, WHOLE_BYTES, embedded.if_no_answer(run))
    with s3_errors.plain(f"s3://{publish.bucket}"):
        client = clients.configured(publish, attempts)
    uploads.keep_on_file(client, run.uploads)
    listing = run.published_listing
    in_parts = listing.exists() and files.read_json(listing).get("joins_once", False)
    return Store(client, *rest, PART_BYTES if in_parts else WHOLE_BYTES, patience=patience)

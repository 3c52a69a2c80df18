"""Content, in short: size, sha256, and the full-object CRC64NVME that S3 servers check uploads against."""

import base64
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import orjson
from awscrt import checksums  # type: ignore[import-untyped]  # comes with botocore[crt]

from workflow_scripts.records import Fingerprint

MIB = 1 << 20


@dataclass(frozen=True)
class Digest:
    """`bytes` is the size; `sha256` is hex; `crc64nvme` is base64 of the big-endian 64 bits, as S3 writes it."""

    bytes: int
    sha256: str
    crc64nvme: str


class Digester:
    """Builds a Digest block by block."""

    def __init__(self) -> None:
        self._size, self._sha256, self._crc = 0, hashlib.sha256(), 0

    def add(self, block: bytes) -> None:
        self._size += len(block)
        self._sha256.update(block)
        self._crc = checksums.crc64nvme(block, self._crc)

    def digest(self) -> Digest:
        crc = base64.b64encode(self._crc.to_bytes(8, "big")).decode()
        return Digest(self._size, self._sha256.hexdigest(), crc)


def digest(source: Path | bytes) -> Digest:
    """The digest of a file, or of bytes."""
    digester = Digester()
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        while block := stream.read(MIB):
            digester.add(block)
    return digester.digest()


def content_hash(fingerprint: Fingerprint) -> str:
    """Hex sha256 of a fingerprint's content part: short enough for an object's metadata (2 KB in all)."""
    return hashlib.sha256(orjson.dumps(fingerprint["content"], option=orjson.OPT_SORT_KEYS)).hexdigest()

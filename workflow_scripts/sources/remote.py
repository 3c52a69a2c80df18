"""A hub's Parquet file that stays there: the parts that are needed come by HTTP Range, at the locked commit.

Such bytes can't be checked against the file's hash, which is that of the whole. What can be checked is: every answer
names the range that was asked for and the size that the hub lists; the footer parses; and pyarrow checks the pages
that carry checksums, which few writers add.
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple

import httpx2

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.sources.hub import HubFile
from workflow_scripts.sources.transfer import Transfer, other_range

MEMORY_BYTES = 32 << 20  # of held parts; larger ones are in a nameless file in the cache's folder


class _Held(NamedTuple):
    """The file's bytes from `start` to before `stop`; `at` is where they are in what holds them."""

    start: int
    stop: int
    at: int


class RemoteFile(io.RawIOBase):
    """One file, for one reader at a time. What `holding` names comes in whole parts; any other read is a request."""

    def __init__(self, client: httpx2.Client, dataset: str, revision: str, file: HubFile, say_as: str) -> None:
        self._client, self._dataset, self._revision = client, dataset, revision
        self._file, self._say_as = file, say_as
        self.name, self.bytes = file.path, file.bytes
        self._position = 0
        self._end_start, self._end = file.bytes, b""  # where Parquet has its footer, which each opening reads
        self._parts: list[_Held] = []
        self._spool: IO[bytes] = io.BytesIO()

    def __str__(self) -> str:
        return f"{self._dataset}: {self.name}"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; less only at the file's end, since pyarrow takes a short read for that."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self.bytes - self._position))
        filled = 0
        while filled < wanted:
            block = self._read_some(self._position, wanted - filled)
            view[filled : filled + len(block)] = block
            filled += len(block)
            self._position += len(block)
        return filled

    def _read_some(self, position: int, most: int) -> bytes:
        held = next((part for part in self._parts if part.start <= position < part.stop), None)
        if held is not None:
            self._spool.seek(held.at + position - held.start)
            return self._spool.read(min(most, held.stop - position))
        if position < self._end_start:
            block = io.BytesIO()
            self._fetch(position, min(position + most, self._end_start), block)
            if position + most < self._end_start:
                return block.getvalue()
            self._end_start, self._end = position, block.getvalue() + self._end
        return self._end[position - self._end_start :][:most]

    @contextmanager
    def holding(self, spans: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Fetch these parts, (start, stop) each, and hold them until the block ends."""
        folder = files.cache_home() / "hub"
        files.make_folder(folder)
        try:
            with SpooledTemporaryFile(max_size=MEMORY_BYTES, dir=str(folder)) as spool:
                at = 0
                for start, stop in spans:
                    self._fetch(start, stop, spool)
                    self._parts.append(_Held(start, stop, at))
                    at += stop - start
                spool.flush()
                self._spool = spool
                yield
        except OSError as error:
            raise PlainError(
                f"{folder}: a part of {self} can't be kept there ({error.strerror or error}); make room, and run the "
                f"same line again"
            ) from error
        finally:
            self._parts, self._spool = [], io.BytesIO()

    def _fetch(self, start: int, stop: int, out: IO[bytes]) -> None:
        _Part(self._client, self._dataset, self._revision, self._file, self._say_as, start, stop, out).run()


class _Part(Transfer):
    """From what is here of a part of the file to all of it; a cut one goes on where it ended."""

    def __init__(
        self,
        client: httpx2.Client,
        dataset: str,
        revision: str,
        file: HubFile,
        say_as: str,
        start: int,
        stop: int,
        out: IO[bytes],
    ) -> None:
        super().__init__(client, dataset, revision, file, say_as)
        self.start, self.have, self.want, self.out = start, 0, stop - start, out

    @property
    def _bounds(self) -> str:
        return f"{self.start + self.have}-{self.start + self.want - 1}"

    def wanted_range(self) -> str | None:
        return f"bytes={self._bounds}"

    def check(self, response: httpx2.Response) -> None:
        told = response.headers.get("Content-Range", "")
        if response.status_code != 206 or told != f"bytes {self._bounds}/{self.file.bytes}":
            raise other_range(response)

    def write(self, block: bytes) -> None:
        block = block[: self.want - self.have]
        self.out.write(block)
        self.have += len(block)

    def kept(self) -> str:
        return ""

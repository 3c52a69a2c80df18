"""Files that are whole or absent: atomic publish, zstd JSON lines, the append-only journal, file locks."""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import zstandard

from workflow_scripts.errors import PlainError

ZSTD_LEVEL = 3  # 6 takes twice the time, which is a third of a completion's CPU, for 3 % less
FSYNC_EVERY_SECONDS = 1.0


def cache_home() -> Path:
    """The folder of what runs and clones share: environments, models (`DRAFTMILL_HOME`)."""
    home = os.environ.get("DRAFTMILL_HOME") or "~/.cache/draftmill"
    return Path(home).expanduser().absolute()


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make `folder` and what is missing above it, each so that it survives a power loss."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, an empty file; on success it is fsynced and renamed into place.

    The temporary name is fixed, so that the next attempt replaces what a killed one left; a lock on it makes
    writers of the same file wait for each other.
    """
    make_folder(path.parent)
    tmp = path.with_name(f".{path.name}.tmp")
    with _open_alone(tmp) as lock:
        try:
            yield tmp
            os.fsync(lock.fileno())
            tmp.replace(path)
        except BaseException as error:
            tmp.unlink(missing_ok=True)
            raise _named(error, path) from error
    fsync_folder(path.parent)


def _named(error: BaseException, path: Path) -> BaseException:
    """The error with the file's name, if it is of a write: the system does not say which file found no room.

    Libraries in Rust (polars) wrap the system's error into one of theirs, and quote its number.
    """
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)
    elif number := re.search(r"\(os error (\d+)\)", str(error)):
        return OSError(int(number[1]), os.strerror(int(number[1])), str(path))
    return error


def _open_alone(tmp: Path) -> BinaryIO:
    """`tmp`, empty, open and flocked. The writer before us may rename it while we wait: then it is another file."""
    while True:
        file = tmp.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(file.fileno()), tmp.stat()):
                file.truncate(0)
                return file
        except FileNotFoundError:
            pass
        file.close()


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Publish `data` as `path`, whole or not at all."""
    with atomic_path(path) as tmp:
        tmp.chmod(mode)  # before there is anything to read
        tmp.write_bytes(data)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Publish `value` as indented JSON with a last newline; equal values give equal bytes."""
    write_bytes(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), mode)


def read_json(path: Path, *keys: str, remedy: str = "delete it and run the same line again") -> Any:
    """The object in a JSON file; PlainError names the file if it is absent, or holds none or not all of `keys`.

    `remedy` is what to do about one that is damaged: ours are made again.
    """
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise PlainError(f"{path} is missing") from error
    except orjson.JSONDecodeError as error:
        raise PlainError(f"{path} is not valid JSON ({error}); {remedy}") from error
    if not isinstance(value, dict) or not value.keys() >= set(keys):
        raise PlainError(f"{path} does not hold what it should; {remedy}")
    return value


def write_jsonl_zst(path: Path, rows: Iterable[Any]) -> int:
    """Publish rows (JSON values, or bytes that are one encoded row) as zstd JSON lines; return their number.

    Equal rows give equal bytes.
    """
    count = 0
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    with atomic_path(path) as tmp, tmp.open("wb") as raw, compressor.stream_writer(raw, closefd=False) as out:
        for row in rows:
            out.write(row if isinstance(row, bytes) else orjson.dumps(row))
            out.write(b"\n")
            count += 1
    return count


def read_jsonl_zst(path: Path) -> Iterator[Any]:
    """The rows of a zstd JSON lines file of ours, one at a time. PlainError names it if it is missing or damaged."""
    for line in lines_zst(path):
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise PlainError(f"{path} is damaged ({error}); delete it and run the same line again") from error


def lines_zst(path: Path) -> Iterator[bytes]:
    """The same rows, not parsed."""
    try:
        with path.open("rb") as raw:
            yield from _zstd_lines(raw)
    except FileNotFoundError as error:
        raise PlainError(f"{path} is missing") from error
    except zstandard.ZstdError as error:
        raise PlainError(f"{path} is damaged ({error}); delete it and run the same line again") from error


def _zstd_lines(raw: BinaryIO) -> Iterator[bytes]:
    """Lines of one zstd frame. zstandard's own stream reader takes a frame that was cut short for a whole one."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    tail = b""
    while block := raw.read(1 << 17):
        *lines, tail = (tail + frame.decompress(block)).split(b"\n")
        yield from lines
    if not frame.eof or tail:
        raise zstandard.ZstdError("it was cut short")


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Locked(Exception):
    """The lock is held by somebody else."""


@contextmanager
def file_lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[BinaryIO]:
    """Hold an flock on `path`; the kernel drops it on any death. Raises Locked if `wait` is false and it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Locked(str(path)) from error
        yield file


class Journal:
    """An append-only file of JSON lines: what is finished inside a chunk, whatever dies.

    Opening it takes an exclusive flock (Locked if another job writes it) and cuts off a torn last line. A line
    is on disk about a second after `append`, and when `sync` returns.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise Locked(str(path)) from error
        fsync_folder(path.parent)
        self._cut_torn_tail()
        self._synced = time.monotonic()

    def _cut_torn_tail(self) -> None:
        """Drop bytes after the last newline: a write that a death cut short."""
        end = self._file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - (1 << 16))
            self._file.seek(start)
            newline = self._file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position != end:
            self._file.truncate(position)
            os.fsync(self._file.fileno())

    def lines(self) -> Iterator[tuple[int, int, Any]]:
        """Offset, length and value of every line. PlainError if a whole line is no JSON."""
        self._file.flush()
        self._file.seek(0)
        offset = 0
        for line in self._file:
            try:
                yield offset, len(line), orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise PlainError(
                    f"{self.path}: the line at byte {offset} is not JSON ({error}); the disk or another program "
                    f"damaged it. Move the file away: its chunk is then generated again"
                ) from error
            offset += len(line)

    def read(self, offset: int, length: int) -> bytes:
        """The line at `offset`, its newline included."""
        self._file.flush()
        return os.pread(self._file.fileno(), length, offset)

    def append(self, value: Any) -> tuple[int, int]:
        """Write one line, fsync if the last one is a second old; return its offset and length."""
        line = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
        try:
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(line)
            self._file.flush()
            if time.monotonic() - self._synced >= FSYNC_EVERY_SECONDS:
                self.sync()
        except OSError as error:
            raise _named(error, self.path) from error
        return offset, len(line)

    def sync(self) -> None:
        """Return when every appended line is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync, and let the lock go."""
        self.sync()
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

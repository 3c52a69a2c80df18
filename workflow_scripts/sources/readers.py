"""From a path pattern to files, and from a file to rows, in memory that does not grow with the file."""

import glob
import os
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from workflow_scripts.errors import PlainError
from workflow_scripts.sources.rejects import BadRow

PARQUET = (".parquet",)
JSON = tuple(kind + packed for kind in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".zst"))
MAX_ROW_BYTES = 16 << 20
BATCH_ROWS = 1000
BATCH_BYTES = 4 << 20

Row = dict[str, Any]


class Elsewhere(Protocol):
    """A Parquet file that is not on this machine: a file object that is read from by need, see remote.RemoteFile."""

    @property
    def name(self) -> str:
        """With the ending."""

    @property
    def bytes(self) -> int:
        """The file's size."""

    def holding(self, spans: Sequence[tuple[int, int]]) -> AbstractContextManager[None]:
        """Have these parts, (start, stop) each, at hand in the block."""


class RawRows(Protocol):
    """Rows of a file that stand together, not parsed yet: at most BATCH_ROWS, of about BATCH_BYTES at most."""

    def __len__(self) -> int: ...

    def parse(self) -> Iterator[tuple[int, Row | BadRow]]:
        """The rows, each with its number in the file from 0."""


class NamedFile(NamedTuple):
    """A file, and what its rows are named by: a local file's name, a hub file's path in its repository."""

    path: Path | Elsewhere
    name: str


class RowGroup(NamedTuple):
    """A part of a Parquet file. `bytes` are those of the columns that were asked for, as stored."""

    rows: int
    bytes: int


class SourceRow(NamedTuple):
    """A row and where it stands: in which file, its number there, and its number in the whole source, from 0."""

    file: str
    number: int
    in_source: int
    row: Row | BadRow


class Batch(NamedTuple):
    """Rows of one file of a source.

    `in_source` is the first one's number in the whole source, `seen` that among the rows that are read at all.
    """

    file: str
    in_source: int
    seen: int
    rows: RawRows

    def parse(self) -> Iterator[SourceRow]:
        """The rows, parsed."""
        for in_source, (number, row) in enumerate(self.rows.parse(), self.in_source):
            yield SourceRow(self.file, number, in_source, row)


def ending(path: Path | Elsewhere) -> str | None:
    """The ending that decides how `path` is read (`.jsonl.gz`); None if it is none that can be."""
    name = path.name.lower()
    return next((known for known in (*PARQUET, *JSON) if name.endswith(known)), None)


def resolve(path_pattern: str) -> list[Path]:
    """The files that a pattern names, sorted: a file, a glob (`**` for any depth), or a folder with all below it.

    In a folder, files with other endings are passed over; a pattern that matches such a file is a mistake.
    """
    path = Path(path_pattern).expanduser()
    if path.is_dir():
        found = sorted(file for file in below(path) if ending(file))
        if not found:
            raise PlainError(f"{path_pattern}: no file in this folder ends in {_endings()}")
        return found
    # A file whose name holds *, ? or [ is meant as itself. Path.glob would find hidden files too.
    names = [str(path)] if path.is_file() else glob.glob(str(path), recursive=True)  # noqa: PTH207
    found = sorted(file for file in {Path(name) for name in names} if file.is_file())
    if not found:
        raise PlainError(f"{path_pattern}: no such file, and no file matches it as a pattern (from {Path.cwd()})")
    for file in found:
        if ending(file) is None:
            raise PlainError(f"{path_pattern}: {file} can't be read; files must end in {_endings()}")
    return found


def below(folder: Path) -> Iterator[Path]:
    """The files in a folder and all folders below it, linked ones too, each folder once; hidden ones aside."""
    seen: set[Path] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        above = Path(parent)
        real = above.resolve()
        if real in seen:
            folders.clear()  # a link back to a folder above
            continue
        seen.add(real)
        # A folder that is also linked goes by its own name.
        folders[:] = sorted((name for name in folders if name[0] != "."), key=lambda name: (above / name).is_symlink())
        yield from (above / name for name in names if name[0] != "." and (above / name).is_file())


def as_size(size: int) -> str:
    """Bytes for people: `8.3 GB`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit / 10:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"


def _endings() -> str:
    return ".parquet, .jsonl, .ndjson or .json (JSON also with .gz or .zst)"


# The readers are imported where they are used: a dry run resolves paths, and pyarrow takes long to import.
def read_rows(
    file: Path | Elsewhere,
    columns: Collection[str] | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    groups: Collection[int] | None = None,
) -> Iterator[tuple[int, Row | BadRow]]:
    """The rows of a file, each with its number from 0 (a JSON line's is the number of the line).

    A row that can't be read comes as a BadRow, and the rows after it come as if it were not there. Of a Parquet
    file only the named `columns` and row `groups` are read. PlainError if the file itself is broken, so that rows
    would be lost.
    """
    for rows in _read_raw(file, columns, max_row_bytes, groups):
        yield from rows.parse()


def _read_raw(
    file: Path | Elsewhere, columns: Collection[str] | None, max_row_bytes: int, groups: Collection[int] | None = None
) -> Iterator[RawRows]:
    try:
        if ending(file) in PARQUET:
            from workflow_scripts.sources import parquet_rows

            yield from parquet_rows.read(file, columns, max_row_bytes, groups)
        elif isinstance(file, Path) and ending(file) is not None:
            from workflow_scripts.sources import json_rows

            yield from json_rows.read(file, max_row_bytes)
        else:
            raise PlainError(f"{file} can't be read; files must end in {_endings()}")
    except OSError as error:
        raise PlainError(f"{file}: {error.strerror or error}") from error


def column_names(file: Path | Elsewhere) -> list[str]:
    """The columns that a Parquet file declares; none for JSON, whose rows say it one by one."""
    if ending(file) not in PARQUET:
        return []
    from workflow_scripts.sources import parquet_rows

    return parquet_rows.column_names(file)


def row_groups(file: Path | Elsewhere, columns: Collection[str] | None) -> list[RowGroup]:
    """The row groups of a Parquet file, in order, as its footer has them."""
    from workflow_scripts.sources import parquet_rows

    try:
        return parquet_rows.groups(file, columns)
    except OSError as error:
        raise PlainError(f"{file}: {error.strerror or error}") from error


def read_batches(
    files: Sequence[NamedFile],
    columns: Collection[str] | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
    groups: Sequence[Sequence[int]] | None = None,
) -> Iterator[Batch]:
    """The rows of all files of a source, in order and not parsed yet; as `read_rows` otherwise.

    With `groups`, only these row groups of each file, all of which are Parquet then.
    """
    before = seen = 0
    for index, (path, name) in enumerate(files):
        if groups is None:
            for rows in _read_raw(path, columns, max_row_bytes):
                yield Batch(name, before, seen, rows)
                before = seen = seen + len(rows)
            continue
        from workflow_scripts.sources import parquet_rows

        for table in parquet_rows.read(path, columns, max_row_bytes, groups[index]) if groups[index] else ():
            yield Batch(name, before + table.first, seen, table)
            seen += len(table)
        before += count_rows(path)


def read_source(
    files: Sequence[NamedFile], columns: Collection[str] | None = None, max_row_bytes: int = MAX_ROW_BYTES
) -> Generator[SourceRow, None, None]:
    """The rows of all files of a source, in order."""
    for batch in read_batches(files, columns, max_row_bytes):
        yield from batch.parse()


def count_rows(file: Path | Elsewhere, max_row_bytes: int = MAX_ROW_BYTES) -> int:
    """How many rows `read_rows` finds in a file: told by Parquet, counted without parsing in JSON."""
    try:
        if ending(file) in PARQUET:
            from workflow_scripts.sources import parquet_rows

            return sum(group.rows for group in parquet_rows.groups(file, ()))
        from workflow_scripts.sources import json_rows

        assert isinstance(file, Path)
        return json_rows.count(file, max_row_bytes)
    except OSError as error:
        raise PlainError(f"{file}: {error.strerror or error}") from error

"""Parquet files, row by row."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts.errors import PlainError
from workflow_scripts.sources.readers import BATCH_BYTES, BATCH_ROWS, Elsewhere, RowGroup
from workflow_scripts.sources.rejects import BadRow

READ_BUFFER_BYTES = 1 << 20
GAP_BYTES = 1 << 20  # between column chunks, that cost less than another request


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that stand together; `first` is the first one's number in the file."""

    first: int
    batch: Any
    max_row_bytes: int

    def __len__(self) -> int:
        rows: int = self.batch.num_rows
        return rows

    def parse(self) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
        return enumerate(_rows(self.batch, self.max_row_bytes), self.first)


def read(
    file: Path | Elsewhere, columns: Collection[str] | None, max_row_bytes: int, groups: Collection[int] | None = None
) -> Iterator[Table]:
    """The rows of a Parquet file, or of some of its row groups.

    Batches are sized by what the file says of its rows, so that memory follows neither row groups nor the file.
    """
    next_group = 0
    with _open(file) as parquet:
        wanted = None if columns is None else [name for name in parquet.schema_arrow.names if name in set(columns)]
        for group in range(parquet.num_row_groups):
            about = parquet.metadata.row_group(group)
            number, next_group = next_group, next_group + about.num_rows
            if about.num_rows == 0 or (groups is not None and group not in groups):
                continue
            row_bytes = max(1, about.total_byte_size // about.num_rows)
            size = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
            with _at_hand(file, about, wanted):
                try:
                    for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=wanted):
                        yield Table(number, batch, max_row_bytes)
                        number += batch.num_rows
                except (pa.ArrowException, OSError) as error:
                    raise _broken(file, error) from error


def _at_hand(file: Path | Elsewhere, group: Any, wanted: Collection[str] | None) -> AbstractContextManager[None]:
    """A row group's wanted columns, here as long as it is read."""
    if isinstance(file, Path):
        return nullcontext()
    spans: list[tuple[int, int]] = []
    for start, length in sorted(_chunks(group, wanted)):
        if spans and start - spans[-1][1] <= GAP_BYTES:
            spans[-1] = spans[-1][0], max(spans[-1][1], start + length)
        else:
            spans.append((start, start + length))
    return file.holding(spans)


def _chunks(group: Any, wanted: Collection[str] | None) -> Iterator[tuple[int, int]]:
    """Where a row group has the wanted columns, with all their fields: (start, length) each, in bytes of the file."""
    for index in range(group.num_columns):
        chunk = group.column(index)
        name = chunk.path_in_schema
        if wanted is not None and not any(name == column or name.startswith(f"{column}.") for column in wanted):
            continue
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        yield start, chunk.total_compressed_size


def _rows(batch: Any, max_row_bytes: int) -> Iterator[dict[str, Any] | BadRow]:
    if batch.num_columns == 0:  # none of the wanted columns: to_pylist would forget the rows
        yield from ({} for _ in range(batch.num_rows))
        return
    if batch.nbytes <= max_row_bytes:
        try:
            yield from batch.to_pylist()
            return
        except (ValueError, OverflowError):
            pass  # a value of this batch is no Python value; find out whose
    for index in range(batch.num_rows):
        yield _row(batch.slice(index, 1), max_row_bytes)


def _row(batch: Any, max_row_bytes: int) -> dict[str, Any] | BadRow:
    if batch.nbytes > max_row_bytes:
        return BadRow("too_large", f"{batch.nbytes} bytes; the limit is {max_row_bytes}", "")
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
        return row
    except UnicodeDecodeError as error:
        return BadRow("invalid_utf8", error.reason, "")
    except (ValueError, OverflowError) as error:
        return BadRow("unreadable_value", str(error), "")


def column_names(file: Path | Elsewhere) -> list[str]:
    """The names of a Parquet file's columns."""
    with _open(file) as parquet:
        names: list[str] = parquet.schema_arrow.names
    return names


def groups(file: Path | Elsewhere, columns: Collection[str] | None) -> list[RowGroup]:
    """A Parquet file's row groups, with the bytes of these columns."""
    with _open(file) as parquet:
        about = [parquet.metadata.row_group(group) for group in range(parquet.num_row_groups)]
        return [RowGroup(group.num_rows, sum(length for _, length in _chunks(group, columns))) for group in about]


def _open(file: Path | Elsewhere) -> Any:
    try:
        # Without pre_buffer and with a read buffer, pages are read as they are decoded, not whole column chunks.
        # A file on this machine was checked by its hash.
        return pq.ParquetFile(
            file,
            pre_buffer=False,
            buffer_size=READ_BUFFER_BYTES,
            page_checksum_verification=not isinstance(file, Path),
        )
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _broken(file, error) from error


def _broken(file: Path | Elsewhere, error: Exception) -> PlainError:
    why = " ".join(str(error).split())
    if isinstance(file, Path):
        return PlainError(f"{file}: not a whole Parquet file ({why}); get the file again")
    return PlainError(f"{file}: what arrives is not Parquet ({why}). A proxy may change it; run the same line again")

"""Parquet files, row by row."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts.errors import PlainError
from workflow_scripts.sources.readers import BATCH_BYTES, BATCH_ROWS
from workflow_scripts.sources.rejects import BadRow

READ_BUFFER_BYTES = 1 << 20


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


def read(file: Path, columns: Collection[str] | None, max_row_bytes: int) -> Iterator[Table]:
    """The rows of a Parquet file.

    Batches are sized by what the file says of its rows, so that memory follows neither row groups nor the file.
    """
    number = 0
    with _open(file) as parquet:
        wanted = None if columns is None else [name for name in parquet.schema_arrow.names if name in set(columns)]
        for group in range(parquet.num_row_groups):
            about = parquet.metadata.row_group(group)
            if about.num_rows == 0:
                continue
            row_bytes = max(1, about.total_byte_size // about.num_rows)
            size = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
            try:
                for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=wanted):
                    yield Table(number, batch, max_row_bytes)
                    number += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise _broken(file, error) from error


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


def column_names(file: Path) -> list[str]:
    """The names of a Parquet file's columns."""
    with _open(file) as parquet:
        names: list[str] = parquet.schema_arrow.names
    return names


def count(file: Path) -> int:
    """How many rows a Parquet file says it has."""
    with _open(file) as parquet:
        rows: int = parquet.metadata.num_rows
    return rows


def _open(file: Path) -> Any:
    try:
        # Without pre_buffer and with a read buffer, pages are read as they are decoded, not whole column chunks.
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=READ_BUFFER_BYTES)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _broken(file, error) from error


def _broken(file: Path, error: Exception) -> PlainError:
    return PlainError(f"{file}: not a whole Parquet file ({' '.join(str(error).split())}); get the file again")

"""Benchmark files as rows of text: JSON, Parquet, CSV with a header, plain lines."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workflow_scripts.errors import PlainError
from workflow_scripts.sources import shapes
from workflow_scripts.sources.readers import read_rows

FIELD_BYTES = 16 << 20


def read(path: Path, columns: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Each row's number, from 0, and its texts: those of `columns` (`a.b` is the field b of a), or all there are.

    PlainError if a row can't be read, or no row has any of the columns.
    """
    seen = False
    found: set[str] = set()
    for number, row in _rows(path):
        wanted = [shapes.held(row, column) for column in columns] if columns else list(row.values())
        seen = seen or any(value is not None for value in wanted)
        found.update(row)
        yield number, [text for value in wanted for text in _texts(value)]
    if columns and not seen:
        there = ", ".join(sorted(found)[:30])
        raise PlainError(f"prompts.decontaminate: {path} has no column {' or '.join(columns)}; it has {there}")


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.name.lower().endswith((".csv", ".txt")):
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                if path.name.lower().endswith(".txt"):
                    yield from ((number, {"text": line}) for number, line in enumerate(file))
                    return
                csv.field_size_limit(FIELD_BYTES)
                yield from enumerate(csv.DictReader(file))
        except (UnicodeDecodeError, csv.Error) as error:
            raise PlainError(f"prompts.decontaminate: {path} can't be read: {error}") from error
        return
    for number, row in read_rows(path):
        if not isinstance(row, dict):
            raise PlainError(f"prompts.decontaminate: {path}: row {number} can't be read ({row.kind}: {row.detail})")
        yield number, row


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, whatever it is made of."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)

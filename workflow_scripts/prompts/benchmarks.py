"""Benchmark files as rows of text: JSON, Parquet, CSV with a header, plain lines."""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workflow_scripts.errors import PlainError
from workflow_scripts.sources import shapes
from workflow_scripts.sources.readers import read_rows

FIELD_BYTES = 16 << 20


def read(path: Path, columns: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Each row's number, from 0, and its texts: those of `columns` (`a.b` is the field b of a), or all there are.

    PlainError if a row can't be read, and if no row has any of the columns, or a word in them.
    """
    words = False
    found: dict[str, None] = {}
    for number, row in _rows(path):
        wanted = [shapes.held(row, column) for column in columns] if columns else list(row.values())
        texts = [text for value in wanted for text in _texts(value)]
        words = words or any(character.isalnum() for text in texts for character in text)
        found |= dict.fromkeys(row)
        yield number, texts
    if words:
        return
    if not found:
        raise PlainError(f"prompts.decontaminate: {path} holds no rows")
    there = ", ".join(list(found)[:30])
    known = [column for column in columns if column in found or column.partition(".")[0] in found]
    if columns and not known:
        raise PlainError(f"prompts.decontaminate: {path} has no column {' or '.join(columns)}; it has {there}")
    raise PlainError(f"prompts.decontaminate: {path} holds no text in {', '.join(known) or there}")


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.name.lower().endswith((".csv", ".txt")):
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                if path.name.lower().endswith(".txt"):
                    yield from ((number, {"text": line}) for number, line in enumerate(file))
                    return
                csv.field_size_limit(FIELD_BYTES)
                yield from _table(path, csv.reader(file))
        except (UnicodeDecodeError, csv.Error) as error:
            raise PlainError(f"prompts.decontaminate: {path} can't be read: {error}") from error
        return
    for number, row in read_rows(path):
        if not isinstance(row, dict):
            raise PlainError(f"prompts.decontaminate: {path}: row {number} can't be read ({row.kind}: {row.detail})")
        yield number, row


def _table(path: Path, lines: Iterator[list[str]]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file by its header; empty lines are none."""
    filled = (line for line in lines if line)
    header = next(filled, [])
    if doubled := [name for name, count in Counter(header).items() if count > 1]:
        raise PlainError(f"prompts.decontaminate: {path} names the column {doubled[0]!r} twice; name each once")
    for number, line in enumerate(filled):
        if any(line[len(header) :]):
            raise PlainError(
                f"prompts.decontaminate: {path}: row {number} has more fields than the header; a text with a comma in "
                f"it must stand in quotes"
            )
        yield number, dict(zip(header, line, strict=False))


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

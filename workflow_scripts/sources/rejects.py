"""What is said of a row that is no prompt: a class, a detail, the row's beginning."""

import json
from typing import Any, NamedTuple

import orjson

EXCERPT_CHARACTERS = 200
DETAIL_CHARACTERS = 120
PART_OF_A_TREE = "part_of_a_tree"
FILTERED = "filtered"
EXPECTED = (PART_OF_A_TREE, FILTERED)  # classes of rows that are as they should be, but are no prompts


class Rejected(Exception):
    """This row is no prompt. `kind` is the class that rejects are counted by; `detail` says what was found."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail


class BadRow(NamedTuple):
    """What a reader yields in place of a row that it can't read."""

    kind: str
    detail: str
    excerpt: str


def reason(kind: str, detail: str) -> str:
    """`kind` or `kind: detail`, short."""
    return f"{kind}: {detail[:DETAIL_CHARACTERS]}" if detail else kind


def excerpt(row: Any) -> str:
    """The beginning of a row: of its bytes, or of its value written as JSON."""
    if not isinstance(row, bytes):
        try:
            row = orjson.dumps(row, default=str)
        except TypeError:  # integers beyond 64 bits, or nested deeper than orjson writes
            try:
                row = json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "replace")
            except (RecursionError, ValueError, TypeError):
                row = b""
    text: str = row[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "replace")  # a character has four bytes at most
    return text[:EXCERPT_CHARACTERS]

"""JSON lines and JSON arrays, row by row: plain, gzip or zstd."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from workflow_scripts.errors import PlainError
from workflow_scripts.sources.readers import BATCH_BYTES, BATCH_ROWS
from workflow_scripts.sources.rejects import BadRow, excerpt

BLOCK_BYTES = 1 << 20
HEAD_BYTES = 1024  # what is kept of a row over the limit, for its excerpt
BOM = b"\xef\xbb\xbf"


class Text(NamedTuple):
    """The bytes of one row; of a row over the limit, its beginning."""

    data: bytes
    length: int


class _Pieces:
    """One row gathered over several blocks, held only as far as the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[bytes] = []
        self.length = 0

    def add(self, piece: bytes) -> None:
        was_over = self.length > self._limit
        self.length += len(piece)
        if was_over:
            return
        self._held.append(piece)
        if self.length > self._limit:
            self._held = [b"".join(self._held)[:HEAD_BYTES]]

    def take(self) -> Text:
        text = Text(self._held[0] if len(self._held) == 1 else b"".join(self._held), self.length)
        self._held, self.length = [], 0
        return text


@dataclass(slots=True)
class Texts:
    """The texts of rows that stand together, and the rows' numbers."""

    numbers: list[int] = field(default_factory=list)
    texts: list[bytes | BadRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def parse(self) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
        for number, text in zip(self.numbers, self.texts, strict=True):
            yield number, parse_object(text) if isinstance(text, bytes) else text


def read(file: Path, limit: int) -> Iterator[Texts]:
    """The rows of a JSON file: its lines, or, in a .json that begins with `[`, its elements.

    Blank lines are no rows. Rows over `limit` bytes are passed over without being held.
    """
    held, size = Texts(), 0
    for number, text in _texts(file, limit):
        held.numbers.append(number)
        if text.length > limit:
            about = f"{text.length} bytes; the limit is {limit}"
            held.texts.append(BadRow("too_large", about, excerpt(text.data)))
        else:
            held.texts.append(text.data)
            size += text.length
        if len(held.numbers) == BATCH_ROWS or size >= BATCH_BYTES:
            yield held
            held, size = Texts(), 0
    if held.numbers:
        yield held


def count(file: Path, limit: int) -> int:
    """How many rows `read` finds in a JSON file; nothing is parsed."""
    return sum(1 for _ in _texts(file, limit))


def _texts(file: Path, limit: int) -> Iterator[tuple[int, Text]]:
    """The rows' bytes with their numbers."""
    blocks = _blocks(file)
    is_array = False
    if file.name.lower().removesuffix(".gz").removesuffix(".zst").endswith(".json"):
        first = next((block for block in blocks if not block.isspace()), b"")
        is_array = first.lstrip()[:1] == b"["
        blocks = chain([first], blocks)
    for number, text in enumerate(_elements(blocks, limit, file) if is_array else _lines(blocks, limit)):
        if is_array or text.length > limit or (text.data and not text.data.isspace()):
            yield number, text


def _blocks(file: Path) -> Iterator[bytes]:
    """The file's bytes, unpacked, without a byte order mark. PlainError if a packed file is damaged or cut short."""
    import pyarrow as pa  # here: who parses only must not pay for it

    packing = {".gz": "gzip", ".zst": "zstd"}.get(file.suffix.lower())
    with file.open("rb") as raw:
        # Arrow's stream reads several members or frames, bounds what one read unpacks, and, unlike zstandard's,
        # tells a stream that was cut short from one that ended.
        stream = raw if packing is None else pa.CompressedInputStream(raw, packing)
        try:
            block = stream.read(BLOCK_BYTES).removeprefix(BOM)
            while block:
                yield block
                block = stream.read(BLOCK_BYTES)
        except OSError as error:
            if packing is None:
                raise
            raise PlainError(f"{file}: damaged or cut short ({error}); get the file again") from error


def _lines(blocks: Iterator[bytes], limit: int) -> Iterator[Text]:
    pieces = _Pieces(limit)
    for block in blocks:
        first, *lines = block.split(b"\n")
        pieces.add(first)
        if lines:
            yield pieces.take()
            pieces.add(lines.pop())
            for line in lines:  # whole in this block
                yield Text(line, len(line))
    yield pieces.take()


_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# As far as the next bracket (between elements: or comma) that is in no string, or a string that the block cuts off.
_TO_BRACKET = re.compile(rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+', re.DOTALL)
_TO_COMMA = re.compile(rb'[^"\[\]{},]*+(?:' + _STRING + rb'[^"\[\]{},]*+)*+', re.DOTALL)
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_CLOSING = {ord("{"): ord("}"), ord("["): ord("]")}


def _elements(blocks: Iterator[bytes], limit: int, file: Path) -> Iterator[Text]:
    """The elements of a JSON array. Only strings and brackets are told apart here; the element is parsed later.

    A file that ends too early ends in a row that is no JSON. PlainError where the brackets don't match: nothing
    after that place could be told apart.
    """
    pieces = _Pieces(limit)
    stack: list[int] = []  # the brackets that must close, the array's own first
    opened = in_string = escaped = False
    before = 0  # bytes of the blocks before this one
    blank = True  # whether the element so far is whitespace only
    for block in blocks:
        start = position = 0
        if not opened:
            start = position = block.index(b"[") + 1
            stack.append(_CLOSING[ord("[")])
            opened = True
        while position < len(block) and stack:
            if escaped:
                position += 1
                escaped = False
            elif in_string:
                position = _end(_IN_STRING, block, position)
                if position < len(block):
                    escaped = block[position] == ord("\\")  # the block's last byte
                    in_string = escaped
                    position += 1
            else:
                position = _end(_TO_COMMA if len(stack) == 1 else _TO_BRACKET, block, position)
                if position == len(block):
                    break
                byte = block[position]
                if byte == ord('"'):
                    in_string = True
                elif byte in _CLOSING:
                    stack.append(_CLOSING[byte])
                elif byte == ord(","):
                    pieces.add(block[start:position])
                    yield pieces.take()
                    start, blank = position + 1, True
                elif byte != stack.pop():
                    raise PlainError(
                        f"{file}: the JSON array breaks at byte {before + position}: {chr(byte)!r} closes what it did "
                        f"not open. Rows after it can't be told apart: repair the file, or write it as JSON lines"
                    )
                elif not stack:  # the array's end
                    last = block[start:position]
                    pieces.add(last)
                    if not (blank and (not last or last.isspace())):  # else an empty array, or a trailing comma
                        yield pieces.take()
                    start = position + 1
                position += 1
        if stack:
            rest = block[start:]
            blank = blank and (not rest or rest.isspace())
            pieces.add(rest)
        elif block[start:].strip():
            raise PlainError(
                f"{file}: text follows the JSON array, at byte {before + start}; write one array or JSON lines"
            )
        before += len(block)
    if stack:
        if pieces.length > limit:
            raise PlainError(
                f"{file}: the JSON array's last element goes on for {pieces.length} bytes to the file's end: a quote "
                f"or bracket is missing before it. Repair the file, or write it as JSON lines"
            )
        torn = pieces.take()
        if len(stack) == 1 and not blank:
            yield torn
            torn = Text(b"", 0)
        yield torn


def _end(pattern: re.Pattern[bytes], block: bytes, position: int) -> int:
    match = pattern.match(block, position)
    assert match is not None  # every pattern here matches the empty string
    return match.end()


_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_THREE_DIGITS = b"000"
_BEYOND_64_BITS = b"0" * 19  # -9223372036854775809, the first integer beyond, has 19 digits


def load_exact(data: bytes) -> Any:
    """The value of a JSON text, integers of any size exact; ValueError or RecursionError if it is none.

    orjson is strict, which json is not: no NaN, no lone surrogates. But it makes floats of integers beyond 64 bits.
    """
    value = orjson.loads(data)
    # 19 digits hold three of every sixth byte, so that most texts need no look at all of them.
    if _THREE_DIGITS in data[::6].translate(_TO_ZEROS) and _BEYOND_64_BITS in data.translate(_TO_ZEROS):
        return json.loads(data)
    return value


def parse_object(data: bytes) -> dict[str, Any] | BadRow:
    """The object in `data`, exact; of doubled keys the last counts."""
    try:
        value = load_exact(data)
    except (ValueError, RecursionError) as error:
        return BadRow(*_why(data, error), excerpt(data))
    if not isinstance(value, dict):
        return BadRow("not_an_object", f"the row is {_a(value)}", excerpt(data))
    return value


def _why(data: bytes, error: Exception) -> tuple[str, str]:
    if not data.strip():
        return "malformed_json", "the file ends inside the array, or nothing stands between two commas"
    try:
        data.decode()
    except UnicodeDecodeError as bad:
        return "invalid_utf8", f"byte {bad.start} of the row: {bad.reason}"
    if "surrogate" in str(error):
        return "lone_surrogate", str(error)
    if b"\x00" in data:
        return "nul_byte", f"byte {data.index(0)} of the row is NUL"
    return "malformed_json", str(error)


def _a(value: Any) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")

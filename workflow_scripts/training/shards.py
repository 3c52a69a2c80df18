"""Training shards on disk, bounded in size, equal bytes for equal rows.

parquet        int32 ids and uint8 masks in zstd Parquet, with where each row is from
jsonl          the same rows as JSON lines, which SpecForge's prompt builder and speculators' prepare-data take
conversations  text as JSON lines, for trainers that render and tokenize themselves

Every row says whether it is `on_policy`, which recorded answers are not, and the `fingerprint` of what made it.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts import files
from workflow_scripts.training.rows import Row

COLUMNS = [
    ("prompt_id", pa.string()),
    ("sample", pa.int32()),
    ("turn", pa.int32()),
    ("source", pa.string()),
    ("class", pa.string()),
    ("on_policy", pa.bool_()),
    ("fingerprint", pa.string()),
]
SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.uint8())), *COLUMNS])
# A folder of JSON lines is what trainers take, and it must hold nothing else.
NAMES = {
    "parquet": "{name}-{number:05d}.parquet",
    "jsonl": "jsonl/{name}/{number:05d}.jsonl",
    "conversations": "conversations/{name}/{number:05d}.jsonl",
}
TOKENS_IN_GROUP = 2_000_000
TOKENS_IN_SHARD = 50_000_000


class Origin(NamedTuple):
    """Whether the target itself gave the answers of an export, and the hash of what made them."""

    on_policy: bool
    fingerprint: str


class Writer(Protocol):
    """Writes a shard, a group of items at a time."""

    def write(self, items: list[Any]) -> None: ...

    def close(self) -> None: ...


class ParquetRows:
    """A row group for each group of rows."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self._origin = origin
        schema = SCHEMA.with_metadata({"on_policy": str(origin.on_policy).lower(), "fingerprint": origin.fingerprint})
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")

    def write(self, items: list[Row]) -> None:
        lengths = [len(row.ids) for row in items]
        ids = np.concatenate([row.ids for row in items])
        mask = np.concatenate([row.mask for row in items])
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        about = zip(*(_about(row, self._origin) for row in items), strict=True)
        columns = [pa.ListArray.from_arrays(offsets, pa.array(flat)) for flat in (ids, mask)]
        columns += [pa.array(values, type=kind) for values, (_, kind) in zip(about, COLUMNS, strict=True)]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))

    def close(self) -> None:
        self._writer.close()


class JsonLines:
    """A line for each item, as `line` makes it."""

    def __init__(self, path: Path, line: Callable[[Any], Mapping[str, Any]]) -> None:
        self._file = path.open("wb")
        self._line = line

    def write(self, items: list[Any]) -> None:
        for item in items:
            line = orjson.dumps(self._line(item), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
            self._file.write(line)

    def close(self) -> None:
        self._file.close()


def _about(row: Row, origin: Origin) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    return (row.prompt_id, row.sample, row.turn, row.source, row.kind, origin.on_policy, origin.fingerprint)


def writers(formats: Iterable[str], origin: Origin) -> dict[str, Callable[[Path], Writer]]:
    """The writers of shards, by format; `conversations` takes lines as they are, the others rows."""

    def line(row: Row) -> dict[str, Any]:
        about = zip((name for name, _ in COLUMNS), _about(row, origin), strict=True)
        return {"input_ids": row.ids, "loss_mask": row.mask, **dict(about)}

    every: dict[str, Callable[[Path], Writer]] = {
        "parquet": lambda path: ParquetRows(path, origin),
        "jsonl": lambda path: JsonLines(path, line),
        "conversations": lambda path: JsonLines(path, lambda item: item),
    }
    return {name: every[name] for name in every if name in formats}


class Shards:
    """The shards `name` of one or several formats side by side, with at most about 50M tokens each.

    `entries` are the finished files as an index names them: path in the folder, bytes, sha256, rows.
    """

    def __init__(self, folder: Path, name: str, writers: Mapping[str, Callable[[Path], Writer]]) -> None:
        self.entries: list[dict[str, Any]] = []
        self.rows = self.tokens = 0
        self._folder, self._name, self._writers = folder, name, writers
        self._group: list[Any] = []
        self._group_tokens = 0
        self._number = self._shard_rows = self._shard_tokens = 0
        self._open = ExitStack()  # the files of the shard being written
        self._writing: list[Writer] = []

    def add(self, item: Any, tokens: int) -> None:
        """Write a row or a conversation of so many tokens."""
        self._group.append(item)
        self._group_tokens += tokens
        if self._group_tokens >= TOKENS_IN_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        if not self._writing:
            for form, writer in self._writers.items():
                opened = writer(self._open.enter_context(files.atomic_path(self._path(form))))
                self._open.callback(opened.close)
                self._writing.append(opened)
        for opened in self._writing:
            opened.write(self._group)
        self.rows += len(self._group)
        self.tokens += self._group_tokens
        self._shard_rows += len(self._group)
        self._shard_tokens += self._group_tokens
        self._group, self._group_tokens = [], 0
        if self._shard_tokens >= TOKENS_IN_SHARD:
            self._finish_shard()

    def _finish_shard(self) -> None:
        self._open.close()
        for form in self._writers:
            self.entries.append(entry(self._path(form), self._folder, self._shard_rows))
        self._writing = []
        self._number += 1
        self._shard_rows = self._shard_tokens = 0

    def _path(self, form: str) -> Path:
        return self._folder / NAMES[form].format(name=self._name, number=self._number)

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *exc: Any) -> None:
        """Finish the last shard; after an error, leave none: a part of an export could pass for the whole."""
        if exc[0] is not None:
            self._open.__exit__(*exc)
            for finished in self.entries:
                (self._folder / finished["path"]).unlink(missing_ok=True)
            return
        if self._group:
            self._write_group()
        if self._writing:
            self._finish_shard()


def entry(path: Path, folder: Path, rows: int | None) -> dict[str, Any]:
    """A finished file of an export as its index names it; `rows` is null where it holds none."""
    name = path.relative_to(folder).as_posix()
    return {"path": name, "bytes": path.stat().st_size, "sha256": files.sha256_file(path), "rows": rows}

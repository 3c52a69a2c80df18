"""Rows to prompts, a batch at a time; nothing here depends on the rows of other batches."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pyarrow as pa

from workflow_scripts.records import Reject
from workflow_scripts.sources import prompt_ids, rejects, shapes
from workflow_scripts.sources.readers import Row, SourceRow
from workflow_scripts.sources.sampling import is_sampled
from workflow_scripts.sources.tally import Tally

if TYPE_CHECKING:
    from workflow_scripts.config import Scalar, Shape


class ShardRow(NamedTuple):
    """One prompt: a row of SCHEMA."""

    first_id: str
    all_id: str
    source_id: str
    source_row: int
    messages: str
    tools: str | None
    meta: str
    dedupe_key: str


# The columns of a shard but a prompt's number there.
SCHEMA = pa.schema(
    [
        pa.field("first_id", pa.string(), nullable=False),
        pa.field("all_id", pa.string(), nullable=False),
        pa.field("source_id", pa.string(), nullable=False),  # the row's own id, or FILE:ROW
        pa.field("source_row", pa.int64(), nullable=False),  # number among all rows of the source, from 0
        pa.field("messages", pa.string(), nullable=False),  # JSON: list of records.Message
        pa.field("tools", pa.string()),  # JSON: list of tools, or null
        pa.field("meta", pa.string(), nullable=False),  # JSON: object
        pa.field("dedupe_key", pa.string(), nullable=False),
    ]
)


def batch_of(rows: Sequence[ShardRow]) -> pa.RecordBatch:
    """The rows as Arrow's, of SCHEMA."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Converted(NamedTuple):
    """What a batch gave: prompts (see SCHEMA), rejects with their classes, the counts, and what it did not have."""

    prompts: pa.RecordBatch
    rejects: list[tuple[str, Reject]]
    tally: Tally
    unseen: set[str]


class Conversion(NamedTuple):
    """How the rows of a source are converted. `watched` are columns that some row must have."""

    shape: "Shape"
    names: shapes.Names
    where: "dict[str, Scalar | list[Scalar]]"
    watched: set[str]
    sample: tuple[int, int] | None  # so many rows, evenly, of so many that are read

    def convert(self, rows: Iterable[SourceRow], seen: int = 0) -> Converted:
        """Make each row a prompt or a reject; `seen` rows were read before."""
        prompts: list[ShardRow] = []
        refused: list[tuple[str, Reject]] = []
        tally, unseen = Tally(), set(self.watched)
        read = shapes.converter(self.shape, self.names)
        for index, source_row in enumerate(rows, seen):
            if self.sample is not None and not is_sampled(index, *self.sample):
                continue
            tally.rows += 1
            row = source_row.row
            try:
                if isinstance(row, rejects.BadRow):
                    raise rejects.Rejected(row.kind, row.detail)
                tally.see(row)
                if unseen:
                    unseen.difference_update(held_columns(row, unseen))
                if self.where:
                    self._check_where(row)
                prompts.append(self._prompt(source_row, row, read(row), tally))
            except rejects.Rejected as why:
                refused.append((why.kind, _reject(why, source_row)))
                tally.reject(why)
        return Converted(batch_of(prompts), refused, tally, unseen)

    def _check_where(self, row: Row) -> None:
        for name, wanted in self.where.items():
            value = shapes.held(row, name)
            if not any(_same(value, one) for one in (wanted if isinstance(wanted, list) else [wanted])):
                raise rejects.Rejected(rejects.FILTERED, f"{name} is {value!r}"[: rejects.DETAIL_CHARACTERS])

    def _prompt(self, source_row: SourceRow, row: Row, conversation: shapes.Conversation, tally: Tally) -> ShardRow:
        messages, tools = conversation.messages, conversation.tools
        own_id = shapes.row_id(row, self.names["id"])
        ids = prompt_ids.identify(messages, tools)
        tally.prompt(row, ids.characters, conversation)
        return ShardRow(
            ids.first_id,
            ids.all_id,
            f"{source_row.file}:{source_row.number}" if own_id is None else own_id,
            source_row.in_source,
            orjson.dumps(messages).decode(),
            None if tools is None else orjson.dumps(tools).decode(),
            "{}",
            ids.dedupe_key,
        )


def held_columns(row: Row, names: Iterable[str]) -> set[str]:
    """Which of the names a row has, fields of columns included."""
    missing = object()
    return {name for name in names if shapes.held(row, name, missing) is not missing}


def _reject(why: rejects.Rejected, source_row: SourceRow) -> Reject:
    row = source_row.row
    return {
        "file": source_row.file,
        "row": source_row.number,
        "reason": rejects.reason(why.kind, why.detail),
        "excerpt": row.excerpt if isinstance(row, rejects.BadRow) else rejects.excerpt(row),
    }


def _same(value: object, wanted: Any) -> bool:
    """Equal, where true is not 1, but 1 is 1.0."""
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted

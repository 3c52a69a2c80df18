"""Rows to prompts, a batch at a time; nothing here depends on the rows of other batches."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from workflow_scripts.records import Reject
from workflow_scripts.sources import prompt_ids, rejects, shapes
from workflow_scripts.sources.readers import Row, SourceRow
from workflow_scripts.sources.sampling import is_sampled
from workflow_scripts.sources.tally import Tally

if TYPE_CHECKING:
    from workflow_scripts.config import Scalar, Shape


class ShardRow(NamedTuple):
    """One prompt: the columns of shard.SCHEMA but `row`, in order."""

    first_id: str
    all_id: str
    source_id: str
    source_row: int
    messages: str
    tools: str | None
    meta: str
    dedupe_key: str


class Converted(NamedTuple):
    """What a batch gave: prompts, rejects with their classes, both in order, the counts, and what it did not have."""

    prompts: list[ShardRow]
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
        made = Converted([], [], Tally(), set(self.watched))
        read = shapes.converter(self.shape, self.names)
        for index, source_row in enumerate(rows, seen):
            if self.sample is not None and not is_sampled(index, *self.sample):
                continue
            made.tally.rows += 1
            row = source_row.row
            try:
                if isinstance(row, rejects.BadRow):
                    raise rejects.Rejected(row.kind, row.detail)
                made.tally.see(row)
                if made.unseen:
                    made.unseen.difference_update(held_columns(row, made.unseen))
                if self.where:
                    self._check_where(row)
                made.prompts.append(self._prompt(source_row, row, read(row), made.tally))
            except rejects.Rejected as why:
                made.rejects.append((why.kind, _reject(why, source_row)))
                made.tally.reject(why)
        return made

    def _check_where(self, row: Row) -> None:
        for name, wanted in self.where.items():
            value = shapes.held(row, name)
            if not any(_same(value, one) for one in (wanted if isinstance(wanted, list) else [wanted])):
                raise rejects.Rejected(rejects.FILTERED, f"{name} is {value!r}"[: rejects.DETAIL_CHARACTERS])

    def _prompt(self, source_row: SourceRow, row: Row, conversation: shapes.Conversation, tally: Tally) -> ShardRow:
        messages, tools = conversation.messages, conversation.tools
        own_id = shapes.row_id(row, self.names["id"])
        ids = prompt_ids.identify(messages, tools)
        made = ShardRow(
            ids.first_id,
            ids.all_id,
            f"{source_row.file}:{source_row.number}" if own_id is None else own_id,
            source_row.in_source,
            orjson.dumps(messages).decode(),
            None if tools is None else orjson.dumps(tools).decode(),
            "{}",
            ids.dedupe_key,
        )
        tally.prompt(row, prompt_ids.prompt_side(messages), conversation)
        return made


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

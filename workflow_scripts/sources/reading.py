"""One pass over the rows of a source: prompts are written, all others are rejected with a reason, all are counted."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import get_args

import orjson

from workflow_scripts import config
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.records import Reject
from workflow_scripts.sources import prompt_ids, recognition, rejects, shapes
from workflow_scripts.sources.readers import (
    NamedFile,
    Row,
    SourceRow,
    column_names,
    count_rows,
    is_sampled,
    read_source,
)
from workflow_scripts.sources.shapes import trees
from workflow_scripts.sources.shard import PromptsWriter, ShardRow
from workflow_scripts.sources.tally import Tally

HOPELESS_ROWS = 10_000  # so many rows without one prompt end the reading
SAY_EVERY_SECONDS = 10.0


class Reading:
    """The pass. `name` is the source's in the config; PlainError if its columns mean nothing to its shape."""

    def __init__(self, name: str, source: config.Reading) -> None:
        self._name = name
        self._source = source
        self._unseen = {column for _, column in source.columns if column is not None} | set(source.where)
        self._examples: dict[str, Reject] = {}
        self._said = time.monotonic()
        self.tally = Tally()
        if source.shape != "auto":
            self._settle(source.shape, source.columns)

    def _settle(self, shape: config.Shape, columns: config.Columns) -> None:
        """Read rows by this shape from now on."""
        self._shape: config.Shape = shape
        self._columns = columns
        self._names = shapes.column_names(shape, columns)
        self._convert = shapes.converter(shape, columns)
        self.tally.shape = shape
        for key, column in columns:
            if column is not None and key not in self._names:
                raise PlainError(
                    f"sources.{self._name}.columns.{key}: means nothing to the shape {shape}, which has "
                    f"{', '.join(self._names)}; leave it out"
                )
        if shape == "message_tree" and self._source.sample is not None:
            raise PlainError(
                f"sources.{self._name}.sample: rows of the shape message_tree belong together, and a sample would tear "
                f"them apart; leave it out"
            )

    def _recognize(self, files: list[NamedFile]) -> None:
        with closing(read_source(files, None, self._source.max_row_bytes)) as rows:
            first = islice((row.row for row in rows if isinstance(row.row, dict)), recognition.ROWS)
            try:
                found = recognition.recognize(first, self._source.columns)
            except recognition.Unrecognized as error:
                raise self._unrecognized(error) from error
        say(f"source {self._name}: {_printable(found.why)}")
        self._settle(found.shape, found.columns)

    def _unrecognized(self, error: recognition.Unrecognized) -> PlainError:
        if not error.found:
            return PlainError(f"source {self._name}: no row can be read, so that its shape can't be recognized")
        lines = "\n".join(f"  {_printable(line)[:200]}" for line in error.found[:30])
        return PlainError(
            f"source {self._name}: no shape fits its first rows. Its columns hold\n{lines}\n"
            f"Shapes: {', '.join(get_args(config.Shape))}. Say which in sources.{self._name}.shape, and in "
            f"sources.{self._name}.columns which column holds what"
        )

    def run(self, files: list[NamedFile], writer: PromptsWriter) -> Iterator[Reject]:
        """Read every row of the files, or an even sample: prompts go to the writer, rejects come out."""
        if self._source.shape == "auto":
            self._recognize(files)
        for file in files:
            self._see(column_names(file.path))
        rows = self._sampled(read_source(files, self._wanted(), self._source.max_row_bytes), files)
        for source_row in shapes.gather(self._shape, self._columns, rows):
            self.tally.rows += 1
            try:
                if isinstance(source_row.row, rejects.BadRow):
                    raise rejects.Rejected(source_row.row.kind, source_row.row.detail)
                self._see(source_row.row)
                if self._source.where:
                    self._check_where(source_row.row)
                self._prompt(source_row, source_row.row, writer)
            except rejects.Rejected as why:
                yield self._reject(why, source_row)
            if not self.tally.prompts and self.tally.judged == HOPELESS_ROWS:
                self._check_share()
            if self.tally.rows % 64 == 0:
                self._say_progress(source_row.file)

    def _wanted(self) -> set[str]:
        """The columns to read: of a name with a dot also the column that it is a field of."""
        names = {column for names in self._names.values() for column in names}
        names |= {*self._source.where, *shapes.LANGUAGES}
        if self._shape == "message_tree":
            names |= set(trees.COLUMNS)
        return names | {name.partition(".")[0] for name in names}

    def _sampled(self, rows: Iterable[SourceRow], files: list[NamedFile]) -> Iterable[SourceRow]:
        sample = self._source.sample
        if sample is None:
            return rows
        total = sum(count_rows(file.path, self._source.max_row_bytes) for file in files)
        if total <= sample:
            return rows
        self.tally.rows_in_source = total
        say(f"source {self._name}: reading an even sample of {sample:,} of {total:,} rows")
        return (row for row in rows if is_sampled(row.in_source, sample, total))

    def check(self) -> None:
        """After the last row: PlainError unless the rows fit the shape and the columns."""
        if not self.tally.rows:
            raise PlainError(f"source {self._name}: {self._source.path or self._source.dataset} holds no rows")
        self._check_share()
        if self._unseen:
            raise PlainError(
                f"source {self._name}: no row has the column {' or '.join(sorted(self._unseen))}, which the config "
                f"names; columns found: {self._found()}"
            )

    def _see(self, columns: list[str] | Row) -> None:
        self.tally.see(columns)
        if self._unseen:
            missing = object()
            row = columns if isinstance(columns, dict) else dict.fromkeys(columns)
            self._unseen = {name for name in self._unseen if shapes.held(row, name, missing) is missing}

    def _check_where(self, row: Row) -> None:
        for name, wanted in self._source.where.items():
            value = shapes.held(row, name)
            if not any(_same(value, one) for one in (wanted if isinstance(wanted, list) else [wanted])):
                raise rejects.Rejected(rejects.FILTERED, f"{name} is {value!r}"[: rejects.DETAIL_CHARACTERS])

    def _prompt(self, source_row: SourceRow, row: Row, writer: PromptsWriter) -> None:
        conversation = self._convert(row)
        messages, tools = conversation.messages, conversation.tools
        own_id = shapes.row_id(row, self._names["id"])
        ids = prompt_ids.identify(messages, tools)
        writer.add(
            ShardRow(
                ids.first_id,
                ids.all_id,
                f"{source_row.file}:{source_row.number}" if own_id is None else own_id,
                source_row.in_source,
                orjson.dumps(messages).decode(),
                None if tools is None else orjson.dumps(tools).decode(),
                "{}",
                ids.dedupe_key,
            )
        )
        self.tally.prompt(row, prompt_ids.prompt_side(messages), conversation)

    def _reject(self, why: rejects.Rejected, source_row: SourceRow) -> Reject:
        self.tally.reject(why)
        row = source_row.row
        excerpt = row.excerpt if isinstance(row, rejects.BadRow) else rejects.excerpt(row)
        reason = rejects.reason(why.kind, why.detail)
        reject: Reject = {"file": source_row.file, "row": source_row.number, "reason": reason, "excerpt": excerpt}
        self._examples.setdefault(why.kind, reject)
        return reject

    def _check_share(self) -> None:
        tally, limit = self.tally, self._source.max_rejects
        if not tally.judged:
            self._say_nothing_left()
        if tally.unexpected <= limit * tally.judged:
            return
        common = [kind for kind, _ in tally.rejects.most_common() if kind not in rejects.EXPECTED][:3]
        lines = [
            f"source {self._name}: {tally.unexpected:,} of {tally.judged:,} rows are no prompts under the shape "
            f"{self._shape}; above {limit:.0%} that is a wrong shape or column, not bad rows"
        ]
        for kind in common:
            example = self._examples[kind]
            lines.append(
                f"  {tally.rejects[kind]:,} x {_printable(example['reason'])} "
                f"(first: {example['file']}, row {example['row']})"
            )
        lines.append(f"columns found: {self._found()}")
        lines.append(f"an example: {_printable(self._examples[common[0]]['excerpt'])}")
        lines.append(f"Check sources.{self._name}.shape and sources.{self._name}.columns")
        raise PlainError("\n".join(lines))

    def _say_nothing_left(self) -> None:
        if rejects.FILTERED in self.tally.rejects and not self._unseen:
            reason = _printable(self._examples[rejects.FILTERED]["reason"])
            raise PlainError(
                f"source {self._name}: sources.{self._name}.where keeps none of {self.tally.rows:,} rows (the first: "
                f"{reason})"
            )

    def _found(self) -> str:
        return _printable(", ".join(sorted(self.tally.columns)[:30])) or "none"

    def _say_progress(self, file: str) -> None:
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_SECONDS:
            self._said = now
            say(f"source {self._name}: {self.tally.rows:,} rows, {self.tally.prompts:,} prompts so far, in {file}")


def _same(value: object, wanted: config.Scalar) -> bool:
    """Equal, where true is not 1, but 1 is 1.0."""
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def _printable(text: str) -> str:
    """Data for a terminal: without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)

"""One pass over the rows of a source: prompts are written, all others are rejected with a reason, all are counted."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import config
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.records import Message, Reject
from workflow_scripts.sources import prompt_ids, rejects, shapes
from workflow_scripts.sources.readers import column_names, read_rows
from workflow_scripts.sources.shard import PromptsWriter

REJECTS_LIMIT = 0.2  # a larger share is a wrong shape, not bad rows
HOPELESS_ROWS = 10_000  # so many rows without one prompt end the reading
MAX_NAMES = 200  # of columns and roles that stats.json lists
SAY_EVERY_SECONDS = 10.0
QUANTILES = (0, 10, 25, 50, 75, 90, 99, 100)


class Tally:
    """What stats.json says of a source."""

    def __init__(self) -> None:
        self.rows = 0
        self.prompts = 0
        self.rejects: Counter[str] = Counter()
        self.roles: Counter[str] = Counter()  # as the rows name them, unknown ones included
        self.columns: set[str] = set()
        self._characters: Counter[int] = Counter()

    def prompt(self, asked: list[Message], roles: list[str]) -> None:
        """Count one prompt; `asked` are its messages before the first answer."""
        self.prompts += 1
        self.roles.update(roles)
        self._characters[sum(len(message["content"]) for message in asked)] += 1

    def reject(self, why: rejects.Rejected) -> None:
        """Count one row that is no prompt."""
        self.rejects[why.kind] += 1
        if why.kind == "unknown_role" and len(self.roles) < MAX_NAMES:
            self.roles[why.detail[: rejects.DETAIL_CHARACTERS]] += 1

    def quantiles(self) -> dict[str, int]:
        """Characters of the prompts before their first answer, at percentiles (nearest rank)."""
        found: dict[str, int] = {}
        lengths = iter(sorted(self._characters.items()))
        seen = length = 0
        for percent in QUANTILES if self.prompts else ():
            while seen < max(1, -(-self.prompts * percent // 100)):
                length, count = next(lengths)
                seen += count
            found[f"p{percent}"] = length
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "prompts": self.prompts,
            "rejects": dict(sorted(self.rejects.items())),
            "roles": dict(sorted(self.roles.items())),
            "columns": sorted(self.columns),
            "characters": self.quantiles(),
        }


class Reading:
    """The pass. `name` is the source's in the config; PlainError if its columns mean nothing to its shape."""

    def __init__(self, name: str, source: config.Reading) -> None:
        self._name = name
        self._source = source
        self._names = shapes.column_names(source.shape, source.columns)
        self._convert = shapes.converter(source.shape, source.columns)
        self._unseen = {column for _, column in source.columns if column is not None}
        self._examples: dict[str, Reject] = {}
        self._said = time.monotonic()
        self.tally = Tally()
        for key, column in source.columns:
            if column is not None and key not in self._names:
                raise PlainError(
                    f"sources.{name}.columns.{key}: means nothing to the shape {source.shape}, which has "
                    f"{', '.join(self._names)}; leave it out"
                )

    def run(self, paths: list[tuple[Path, str]], writer: PromptsWriter) -> Iterator[Reject]:
        """Read every row of the files, each with the name that rows are named by: prompts go to the writer, rejects
        come out.
        """
        wanted = {column for names in self._names.values() for column in names}
        for path, name in paths:
            self._see(column_names(path))
            for number, row in read_rows(path, wanted):
                self.tally.rows += 1
                try:
                    if isinstance(row, rejects.BadRow):
                        raise rejects.Rejected(row.kind, row.detail)
                    self._see(row)
                    self._prompt(row, name, number, writer)
                except rejects.Rejected as why:
                    yield self._reject(why, row, name, number)
                if self.tally.rows == HOPELESS_ROWS and not self.tally.prompts:
                    self._check_share()
                self._say_progress(name)

    def check(self) -> None:
        """After the last row: PlainError unless the rows fit the shape and the columns."""
        if not self.tally.rows:
            raise PlainError(f"source {self._name}: {self._source.path} holds no rows")
        self._check_share()
        if self._unseen:
            raise PlainError(
                f"source {self._name}: no row has the column {' or '.join(sorted(self._unseen))}, which the config "
                f"names; columns found: {self._found()}"
            )

    def _see(self, columns: list[str] | shapes.Row) -> None:
        if len(self.tally.columns) < MAX_NAMES:
            self.tally.columns.update(columns)
        if self._unseen:
            self._unseen.difference_update(columns)

    def _prompt(self, row: shapes.Row, name: str, number: int, writer: PromptsWriter) -> None:
        conversation = self._convert(row)
        messages, tools = conversation.messages, conversation.tools
        own_id = shapes.row_id(row, self._names["id"])
        writer.add(
            {
                "first_id": prompt_ids.first_id(messages, tools),
                "all_id": prompt_ids.all_id(messages, tools),
                "source_id": f"{name}:{number}" if own_id is None else own_id,
                "source_row": self.tally.rows - 1,
                "messages": orjson.dumps(messages).decode(),
                "tools": None if tools is None else orjson.dumps(tools).decode(),
                "meta": "{}",
                "dedupe_key": prompt_ids.dedupe_key(messages, tools),
            }
        )
        self.tally.prompt(prompt_ids.prompt_side(messages), conversation.roles)

    def _reject(self, why: rejects.Rejected, row: shapes.Row | rejects.BadRow, name: str, number: int) -> Reject:
        self.tally.reject(why)
        excerpt = row.excerpt if isinstance(row, rejects.BadRow) else rejects.excerpt(row)
        reason = rejects.reason(why.kind, why.detail)
        reject: Reject = {"file": name, "row": number, "reason": reason, "excerpt": excerpt}
        self._examples.setdefault(why.kind, reject)
        return reject

    def _check_share(self) -> None:
        tally = self.tally
        rejected = tally.rejects.total()
        if rejected <= REJECTS_LIMIT * tally.rows:
            return
        common = tally.rejects.most_common(3)
        lines = [
            f"source {self._name}: {rejected:,} of {tally.rows:,} rows are no prompts under the shape "
            f"{self._source.shape}; above {REJECTS_LIMIT:.0%} that is a wrong shape or column, not bad rows"
        ]
        for kind, count in common:
            example = self._examples[kind]
            lines.append(
                f"  {count:,} x {_printable(example['reason'])} (first: {example['file']}, row {example['row']})"
            )
        lines.append(f"columns found: {self._found()}")
        lines.append(f"an example: {_printable(self._examples[common[0][0]]['excerpt'])}")
        lines.append(f"Check sources.{self._name}.shape and sources.{self._name}.columns")
        raise PlainError("\n".join(lines))

    def _found(self) -> str:
        return _printable(", ".join(sorted(self.tally.columns)[:30])) or "none"

    def _say_progress(self, name: str) -> None:
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_SECONDS:
            self._said = now
            say(f"source {self._name}: {self.tally.rows:,} rows, {self.tally.prompts:,} prompts so far, in {name}")


def _printable(text: str) -> str:
    """Data for a terminal: without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)

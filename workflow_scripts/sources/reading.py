"""One pass over the rows of a source: prompts are written, all others are rejected with a reason, all are counted."""

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import get_args

from workflow_scripts import config
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.records import Reject
from workflow_scripts.sources import recognition, rejects, shapes, workers
from workflow_scripts.sources.conversion import Conversion, Converted, held_columns
from workflow_scripts.sources.readers import (
    BATCH_ROWS,
    NamedFile,
    Row,
    SourceRow,
    column_names,
    read_batches,
    read_source,
)
from workflow_scripts.sources.sampling import Sample
from workflow_scripts.sources.shapes import trees
from workflow_scripts.sources.shard import PromptsWriter
from workflow_scripts.sources.tally import Tally

HOPELESS_ROWS = 10_000  # so many rows without one prompt end the reading, unless max_rejects is 1
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
        self._names = shapes.column_names(shape, columns)
        self.tally.shape = shape
        if shape == "message_tree" and self._source.sample is not None:  # recognized only now
            raise PlainError(f"sources.{self._name}.sample: {shapes.NO_SAMPLE_OF_TREES}")

    def _recognize(self, files: list[NamedFile]) -> None:
        with closing(read_source(files, None, self._source.max_row_bytes)) as rows:
            bad: list[SourceRow] = []
            try:
                found = recognition.recognize(
                    islice(_readable(rows, bad), recognition.ROWS), self._source.columns, self._source.where
                )
            except recognition.Unrecognized as error:
                raise self._unrecognized(error, bad) from error
        say(f"source {self._name}: {_printable(found.why)}")
        self._settle(found.shape, found.columns)
        self._names = found.names()

    def _unrecognized(self, error: recognition.Unrecognized, bad: list[SourceRow]) -> PlainError:
        if not error.rows and not bad:
            return self._no_rows()
        if not error.rows:
            [first] = bad
            assert isinstance(first.row, rejects.BadRow)
            reason = _printable(rejects.reason(first.row.kind, first.row.detail))
            return PlainError(
                f"source {self._name}: no row can be read, so that its shape can't be recognized (the first: "
                f"{first.file}, row {first.number}: {reason})"
            )
        lines = "\n".join(f"  {_printable(line)[:200]}" for line in error.found[:30])
        return PlainError(
            f"source {self._name}: no shape fits its first rows. Its columns hold\n{lines}\n"
            f"Shapes: {', '.join(get_args(config.Shape))}. Say which in sources.{self._name}.shape, and in "
            f"sources.{self._name}.columns which column holds what"
        )

    def run(self, files: list[NamedFile], writer: PromptsWriter, processes: int = 0) -> Iterator[Reject]:
        """Read every row of the files, or an even sample: prompts go to the writer, rejects come out.

        With `processes`, so many convert the rows.
        """
        if self._source.shape == "auto":
            self._recognize(files)
        for file in files:
            self._see(column_names(file.path))
        with closing(self._converted(files, processes)) as batches:
            for made in batches:
                self.tally.add(made.tally)
                self._unseen &= made.unseen
                writer.add(made.prompts)
                for kind, reject in made.rejects:
                    self._examples.setdefault(kind, reject)
                    yield reject
                if not self.tally.prompts and self.tally.judged >= HOPELESS_ROWS:
                    self._check_share(ended=True)
                self._say_progress()

    def _converted(self, files: list[NamedFile], processes: int) -> Generator[Converted, None, None]:
        """What the rows give, batch by batch."""
        limit, sample = self._source.max_row_bytes, self._sample(files)
        fraction = None if sample is None else (sample.rows, sample.kept_rows)
        conversion = Conversion(self._shape, self._names, self._source.where, self._unseen, fraction)
        if self._shape == "message_tree":
            rows = iter(shapes.gather(self._shape, self._names, read_source(files, self._wanted(), limit)))
            while held := list(islice(rows, BATCH_ROWS)):
                yield conversion.convert(held)
            return
        batches = read_batches(files, self._wanted(), limit, None if sample is None else sample.groups)
        if processes:
            yield from workers.convert(batches, conversion, processes)
        else:
            for batch in batches:
                yield conversion.convert(batch.parse(), batch.seen)

    def _wanted(self) -> set[str]:
        """The columns to read: of a name with a dot also the column that it is a field of."""
        names = {column for names in self._names.values() for column in names}
        names |= {*self._source.where, *shapes.LANGUAGES}
        if self._shape == "message_tree":
            names |= set(trees.COLUMNS)
        return names | {name.partition(".")[0] for name in names}

    def _sample(self, files: list[NamedFile]) -> Sample | None:
        """Which rows are read; None for all."""
        if self._source.sample is None:
            return None
        sample = Sample.of(files, self._source.sample, self._wanted(), self._source.max_row_bytes)
        if sample.rows < sample.total:
            self.tally.rows_in_source = sample.total
        if described := sample.describe():
            say(f"source {self._name}: {described}")
        return sample

    def check(self) -> None:
        """After the last row: PlainError unless the rows fit the shape and the columns."""
        if not self.tally.rows:
            raise self._no_rows()
        self._check_share()
        if self._unseen:
            raise PlainError(
                f"source {self._name}: no row has the column {' or '.join(sorted(self._unseen))}, which the config "
                f"names; columns found: {self._found()}"
            )

    def _no_rows(self) -> PlainError:
        return PlainError(f"source {self._name}: {self._source.path or self._source.dataset} holds no rows")

    def _see(self, columns: list[str]) -> None:
        self.tally.see(columns)
        self._unseen -= held_columns(dict.fromkeys(columns), self._unseen)

    def _check_share(self, ended: bool = False) -> None:
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
        if ended:
            lines.append(
                f"The reading was ended after {tally.judged:,} rows without one prompt. Where later rows are good, "
                f"sources.{self._name}.max_rejects: 1 reads on"
            )
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

    def _say_progress(self) -> None:
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_SECONDS:
            self._said = now
            say(f"source {self._name}: {self.tally.rows:,} rows, {self.tally.prompts:,} prompts so far")


def _readable(rows: Iterable[SourceRow], bad: list[SourceRow]) -> Iterator[Row]:
    """The rows that can be read; the first that can't goes to `bad`."""
    for row in rows:
        if isinstance(row.row, dict):
            yield row.row
        elif not bad:
            bad.append(row)


def _printable(text: str) -> str:
    """Data for a terminal: without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)

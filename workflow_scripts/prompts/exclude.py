"""Earlier prompts, which are not taken again: known by first_id, and by their text where its bytes tell.

A row of a manifest, a chunk of prompts or of completions names its first_id (and a manifest may name dedupe_key).
Rows of other files are normalized as a source's are, by their recognized shape.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from workflow_scripts import files
from workflow_scripts.config import Columns
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import ContentHashes
from workflow_scripts.jobs import say
from workflow_scripts.prompts import inputs
from workflow_scripts.prompts.filters import Hit
from workflow_scripts.run import Run
from workflow_scripts.sources import prompt_ids, recognition, rejects, shapes
from workflow_scripts.sources.conversion import Conversion
from workflow_scripts.sources.readers import (
    BATCH_ROWS,
    PARQUET,
    NamedFile,
    Row,
    SourceRow,
    column_names,
    ending,
    read_rows,
    read_source,
)
from workflow_scripts.sources.tally import Tally

FIRST_ID = re.compile("[0-9a-f]{64}")
MAX_UNREAD = 0.2  # as a source's max_rejects: a larger share of rows that are no prompts is a mistake
SCHEMA = {"first_id": pl.String, "dedupe_key": pl.String, "row": pl.Int64}


class Earlier(NamedTuple):
    """One earlier prompt; `dedupe_key` is None where the row does not hold its text."""

    first_id: str
    dedupe_key: str | None
    row: int


class Exclude:
    """Drops what earlier runs took; `by_text` also what differs in case and spacing only."""

    reason = "excluded"

    def __init__(self, earlier: Iterable[tuple[str, pl.DataFrame]], *, by_text: bool) -> None:
        found = [frame.with_columns(file=pl.lit(name)) for name, frame in earlier]
        known = pl.concat(found) if found else pl.DataFrame(schema={**SCHEMA, "file": pl.String})
        self._ids = known.select("first_id", "file", "row").unique("first_id", keep="first", maintain_order=True)
        texts = known.filter(pl.lit(by_text) & pl.col("dedupe_key").is_not_null())
        self._texts = texts.select("dedupe_key", "file", "row").unique("dedupe_key", keep="first", maintain_order=True)

    def check(self, candidates: pl.DataFrame) -> dict[int, Hit]:
        """The candidates that were taken before; `repeats` is FILE:ROW, rows from 0."""
        numbered = candidates.select("first_id", "dedupe_key").with_row_index("at")
        hits: dict[int, Hit] = {}
        for known, key, detail in (
            (self._texts, "dedupe_key", "the same text, case and spacing aside"),
            (self._ids, "first_id", "the same prompt"),
        ):
            for at, file, row in numbered.join(known, on=key).select("at", "file", "row").iter_rows():
                hits[at] = Hit(f"{file}:{row}", detail)
        return hits


def open_exclude(run: Run, recorded: list[inputs.Input]) -> Exclude:
    """The filter of a run's `prompts.exclude`, by what lock.json recorded of it."""
    hashes = ContentHashes()
    earlier: list[tuple[str, pl.DataFrame]] = []
    for entry in run.config.prompts.exclude:
        if entry.startswith(inputs.S3):
            from workflow_scripts.prompts import earlier_s3  # boto3 takes a second

            prefix = entry[: entry.rfind("/") + 1]
            was = next(each for each in recorded if each["from"] == entry)
            found = [(f"{prefix}{file.name}", file.path) for file in earlier_s3.fetch(run, was)]
        else:
            local = inputs.checked_files("exclude", entry, recorded, inputs.excluded_files, hashes)
            found = [(str(file.path), file.path) for file in local]
        earlier += [(name, read_earlier(path, name)) for name, path in found]
    hashes.save()
    say(f"excluding {sum(len(frame) for _, frame in earlier):,} earlier prompts of {len(earlier)} files")
    return Exclude(earlier, by_text=run.config.prompts.dedupe.exact)


def read_earlier(path: Path, name: str) -> pl.DataFrame:
    """The prompts of one file: first_id, dedupe_key (null where the bytes don't tell), row. PlainError without any."""
    frame = reader(path, name)()
    if frame.is_empty() and next(read_rows(path), None) is not None:  # a chunk may hold no prompts
        raise PlainError(f"prompts.exclude: {name} holds no prompts")
    return frame


def reader(path: Path, name: str) -> Callable[[], pl.DataFrame]:
    """How the prompts of a file are read, by its first rows. PlainError if these are no prompts."""
    first = next((row for _, row in read_rows(path) if isinstance(row, dict)), None)
    if first is not None and _is_own(first):
        if ending(path) in PARQUET:
            return lambda: _own_columns(path, name)
        return lambda: pl.DataFrame(list(_own_rows(path, name)), SCHEMA, orient="row")
    if next(read_rows(path), None) is None:
        return lambda: pl.DataFrame(schema=SCHEMA)
    found = _recognized(path, name)
    return lambda: pl.DataFrame(list(_normalized(path, name, found)), SCHEMA, orient="row")


def _is_own(row: Row) -> bool:
    first_id = row.get("first_id")
    return isinstance(first_id, str) and FIRST_ID.fullmatch(first_id) is not None


def _own_columns(path: Path, name: str) -> pl.DataFrame:
    wanted: list[str] = [column for column in ("first_id", "dedupe_key") if column in column_names(path)]
    try:
        frame = pl.read_parquet(path, columns=wanted, glob=False)
        if "dedupe_key" not in wanted:
            frame = frame.with_columns(dedupe_key=pl.lit(None, pl.String))
        rows = pl.int_range(pl.len(), dtype=pl.Int64)
        frame = frame.select("first_id", "dedupe_key", row=rows).cast(SCHEMA)  # type: ignore[arg-type]
    except (OSError, pl.exceptions.PolarsError) as error:
        raise PlainError(f"prompts.exclude: {name} is damaged ({error})") from error
    others = frame.filter(~pl.col("first_id").str.contains(f"^{FIRST_ID.pattern}$").fill_null(value=False))
    if len(others):
        raise _no_id(name, others["row"][0])
    return frame


def _own_rows(path: Path, name: str) -> Iterator[Earlier]:
    for number, row in read_rows(path):
        if not isinstance(row, dict):
            raise PlainError(
                f"prompts.exclude: {name}: row {number} can't be read ({rejects.reason(row.kind, row.detail)})"
            )
        if not _is_own(row):
            raise _no_id(name, number)
        yield Earlier(row["first_id"], _dedupe_key(row), number)


def _no_id(name: str, number: int) -> PlainError:
    return PlainError(f"prompts.exclude: {name}: row {number} names no first_id, as the rows above it do")


def _dedupe_key(row: Row) -> str | None:
    try:
        messages: Any = prompt_ids.prompt_side(row["messages"])
        return prompt_ids.identify(messages, row.get("tools")).dedupe_key
    except (KeyError, TypeError, AttributeError):
        return None


def _recognized(path: Path, name: str) -> recognition.Recognized:
    """The shape of a file's rows. PlainError if there is none."""
    head = islice(read_rows(path), recognition.ROWS)
    rows = [row for _, row in head]
    try:
        return recognition.recognize((row for row in rows if isinstance(row, dict)), Columns())
    except recognition.Unrecognized as error:
        bad = next((row for row in rows if not isinstance(row, dict)), None)
        if not error.rows and bad is not None:
            raise PlainError(
                f"prompts.exclude: {name}: no row can be read (the first: {rejects.reason(bad.kind, bad.detail)})"
            ) from error
        if any("prompt_id" in row and "reason" in row for row in rows if isinstance(row, dict)):
            raise PlainError(
                f"prompts.exclude: {name} tells of prompts that a run did not take (dropped or failed), without their "
                f"text; name the run's manifest.parquet"
            ) from error
        lines = "\n".join(f"  {line[:200]}" for line in error.found[:30]) or "  nothing"
        raise PlainError(
            f"prompts.exclude: {name}: neither first_id nor a conversation was found (`conversations`, `messages`, "
            f"`prompt`). Its columns hold\n{lines}"
        ) from error


def _normalized(path: Path, name: str, found: recognition.Recognized) -> Iterator[Earlier]:
    """The prompts of a file of any recognized shape, as a source would give them."""
    names = found.names()
    conversion = Conversion(found.shape, names, {}, set(), None)
    rows: Iterator[SourceRow] = iter(shapes.gather(found.shape, names, read_source([NamedFile(path, path.name)])))
    tally, example = Tally(), ""
    while held := list(islice(rows, BATCH_ROWS)):
        made = conversion.convert(held)
        tally.add(made.tally)
        for kind, reject in made.rejects:
            if not example and kind not in rejects.EXPECTED:
                example = f"row {reject['row']}: {reject['reason']}"
        columns = (made.prompts[name].to_pylist() for name in ("first_id", "dedupe_key", "source_row"))
        yield from map(Earlier, *columns)
    if not tally.unexpected:
        return
    line = f"prompts.exclude: {name}: {tally.unexpected:,} rows are no prompts, and exclude nothing ({example})"
    if tally.unexpected > MAX_UNREAD * tally.judged:
        raise PlainError(f"{line}; only {tally.prompts:,} are, read by {found.why}. Name a file of prompts only")
    say(f"{line}; {tally.prompts:,} are")


def recorded_inputs(run: Run) -> dict[str, Any]:
    """What lock.json says of the inputs of the run's prompts; nothing in one of before there were any."""
    found: dict[str, Any] = files.read_json(run.lock, "sources").get("prompts", {})
    return found

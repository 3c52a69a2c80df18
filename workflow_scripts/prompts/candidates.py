"""The prompts that a mix draws from: each shard's in its seeded order, a stand-in's only once it is needed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import polars as pl
import pyarrow.parquet as pq

from workflow_scripts import files
from workflow_scripts.config import Reading
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.prompts.filters import Filter, Hit
from workflow_scripts.prompts.mix import AT_ONCE, Candidate, Drop, Ref, Stream, Text, order_key
from workflow_scripts.run import Run
from workflow_scripts.sources.locking import Locked, lock_dataset
from workflow_scripts.sources.normalize import ensure_shard
from workflow_scripts.sources.prompt_ids import whole_key

BYTES_AT_ONCE = 400 << 20  # of rows that are read for the filters


@dataclass
class Shards:
    """The shards of a run by name, with what was recorded of them; `stand_ins` are those of no source of the run's."""

    run: Run
    filters: Sequence[Filter] = ()
    text_of: Callable[[str, str | None], Text] | None = None  # where near-duplicates are looked for
    stand_ins: dict[str, Locked] = field(default_factory=dict)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    _streams: dict[str, Stream] = field(default_factory=dict)

    def own(self, name: str) -> Stream:
        """The candidates of a source; none if it can't be read."""
        if not self._available(name):
            return Stream(())
        self._streams[name] = Stream(self._of_shard(name, source_shard(self.run, name)))
        return self._streams[name]

    def substitutes(self, name: str) -> Iterable[Stream]:
        """A source's stand-ins, each read only if the mix asks for it."""
        source = self.run.config.sources[name]
        if source.take == "all":
            return () if self._available(name) else self._first_readable(source.substitutes)
        return [self.fill(each, reading) for each, reading in source.substitutes.items()]

    def fill(self, name: str, reading: Reading) -> Stream:
        """The candidates of a stand-in, read only when the first is asked for; nothing if it can't be read."""
        return self._streams.setdefault(name, Stream(self._of_stand_in(name, reading)))

    def _of_stand_in(self, name: str, reading: Reading) -> Iterator[Candidate]:
        locked = self._locked(name, reading)
        if "unavailable" in locked:
            say(f"{name} can't stand in: {locked['unavailable']['reason']}")
            return
        yield from self._of_shard(name, ensure_shard(self.run.results, name, reading, locked))

    def _locked(self, name: str, reading: Reading) -> Locked:
        """What is recorded of a stand-in, as of a source once for the run: before anything of it is read."""
        if name in self.run.config.sources:
            found: Locked = files.read_json(self.run.lock, "sources")["sources"][name]
            return found
        record = self.run.folder / "stand_ins.json"
        known: dict[str, Locked] = files.read_json(record) if record.exists() else {}
        if "unavailable" in known.get(name, {"unavailable": True}):
            known[name] = lock_dataset(name, reading, self.run.results)
            files.write_json(record, known)
        self.stand_ins[name] = known[name]
        return known[name]

    def _available(self, name: str) -> bool:
        return "unavailable" not in files.read_json(self.run.source(name))

    def _first_readable(self, readings: dict[str, Reading]) -> Iterator[Stream]:
        """Who stands in for a source that gives all: one, however much it has, once the mix has asked for it."""
        for name, reading in readings.items():
            yield self.fill(name, reading)
            if name in self.frames:
                return

    def _of_shard(self, name: str, shard: Path) -> Iterator[Candidate]:
        """In seeded order by the text, so that prompts of one text stand together, the lowest id first.

        Where all are taken the seed decides nothing: of near-duplicates too the one with the lowest id comes first.
        """
        path = self.paths[name] = shard / "prompts.parquet"
        prompts, sources = self.run.config.prompts, self.run.config.sources
        if prompts.turns == "first":
            frame = pl.read_parquet(path, columns=["row", "first_id", "dedupe_key"], glob=False)
            frame = frame.with_columns(prompt_id="first_id", key="dedupe_key")
        else:
            frame = pl.read_parquet(path, columns=["row", "first_id", "all_id", "dedupe_key"], glob=False)
            frame = frame.rename({"all_id": "prompt_id"}).with_columns(_whole_keys(path))
        order = pl.Series("order", [order_key(prompts.seed, key) for key in frame["key"]], dtype=pl.Binary)
        order_by = ["order", "prompt_id", "row"]
        if prompts.total is None and name in sources and sources[name].take == "all":
            order_by.remove("order")
        self.frames[name] = frame.with_columns(order).sort(order_by)
        keys = self.frames[name]["key" if prompts.dedupe.exact else "prompt_id"]
        if not self.filters and self.text_of is None:
            return (Candidate(Ref(name, number), key) for number, key in enumerate(keys))
        return self._looked_at(name, keys)

    def _looked_at(self, name: str, keys: pl.Series) -> Iterator[Candidate]:
        number = 0
        for block in _blocks(self.paths[name], self.frames[name]["row"]):
            dropped = _hits(self.filters, block)
            rows = zip(keys[number : number + len(block)], block["messages"], block["tools"], strict=True)
            for index, (key, messages, tools) in enumerate(rows):
                ref = Ref(name, number + index)
                if index in dropped:
                    reason, hit = dropped[index]
                    yield Candidate(ref, key, drop=Drop(ref, reason, hit.repeats, hit.detail))
                else:
                    yield Candidate(ref, key, self.text_of(messages, tools) if self.text_of else None)
            number += len(block)


def _whole_keys(path: Path) -> pl.Series:
    """The dedupe keys of whole conversations, in the shard's order; only a first turn's are in the shard."""
    keys: list[str] = []
    with pq.ParquetFile(path) as shard:
        for batch in shard.iter_batches(AT_ONCE, columns=["first_id", "all_id", "dedupe_key", "messages", "tools"]):
            for first_id, all_id, key, messages, tools in zip(*(col.to_pylist() for col in batch), strict=True):
                if first_id != all_id:
                    key = whole_key(orjson.loads(messages), orjson.loads(tools) if tools else None)
                keys.append(key)
    return pl.Series("key", keys, dtype=pl.String)


def _blocks(path: Path, rows: pl.Series) -> Iterator[pl.DataFrame]:
    """A shard's rows in the order of `rows`, 10,000 at a time.

    They lie scattered over the file, so each reading of it takes twice as many as the last, as far as memory allows.
    """
    meta = pq.read_metadata(path)
    size = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
    most = max(AT_ONCE, BYTES_AT_ONCE * meta.num_rows // max(size, 1))
    start, count = 0, AT_ONCE
    while start < len(rows):
        wanted = rows[start : start + count]
        found = pl.scan_parquet(path, glob=False).filter(pl.col("row").is_in(wanted.implode())).collect()
        read = wanted.to_frame().join(found, on="row", how="left", maintain_order="left")
        for at in range(0, len(read), AT_ONCE):
            yield read[at : at + AT_ONCE]
        start, count = start + count, min(2 * count, most)


def _hits(filters: Sequence[Filter], block: pl.DataFrame) -> dict[int, tuple[str, Hit]]:
    """What the filters drop of a block, by index; each looks at what those before it left."""
    dropped: dict[int, tuple[str, Hit]] = {}
    for one in filters:
        left = [index for index in range(len(block)) if index not in dropped]
        dropped |= {left[index]: (one.reason, hit) for index, hit in one.check(block[left]).items()}
    return dropped


def source_shard(run: Run, name: str) -> Path:
    """The shard that the manifest's `source` names: of one of the run's sources, or of a stand-in."""
    if name in run.config.sources:
        return ensure_shard(
            run.results, name, run.config.sources[name], files.read_json(run.lock, "sources")["sources"][name]
        )
    readings = dict(run.config.prompts.fill)
    for source in run.config.sources.values():
        readings |= source.substitutes
    stand_ins = files.read_json(run.manifest_json).get("stand_ins", {})
    if name not in readings or name not in stand_ins:
        raise PlainError(f"{run.manifest} names the source {name!r}, which {run.manifest_json} does not know")
    return ensure_shard(run.results, name, readings[name], stand_ins[name])

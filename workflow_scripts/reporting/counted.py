"""What a run has made by now, by its files alone: sidecars of finished chunks, and journals of the others.

Looking again reads only what is new: a sidecar never changes, a journal only grows.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.completions.by_source import BySource
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run

BLOCK = 1 << 24  # of a journal that is read at once


@dataclass
class _Begun:
    """The journal of a chunk that is not finished, read so far."""

    read: int = 0  # bytes, up to the end of the last whole line
    tally: "Tally" = field(default_factory=lambda: Tally())


@dataclass
class Tally:
    """Counts of completions and failures."""

    completions: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # by class
    classes: Counter[str] = field(default_factory=Counter)  # of turns
    sources: BySource = field(default_factory=BySource)

    def add(self, other: "Tally") -> None:
        self.completions += other.completions
        self.failed.update(other.failed)
        self.classes.update(other.classes)
        self.sources.add_counts(other.sources.counts())


class Counted:
    """A run's chunks, looked at as often as `look` is called."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._finished = Tally()
        self.done: set[str] = set()  # chunks, and redrives
        self._begun: dict[str, _Begun] = {}

    def look(self) -> Tally:
        """All that is made by now. A chunk that is being finished counts once."""
        run = self._run
        folder = run.folder / "completions"
        there = {path.stem for path in folder.glob("*.json")} if folder.exists() else set()
        for chunk in [*run.chunks(), *run.redrives()]:
            if chunk in there and chunk not in self.done:
                self._take_sidecar(chunk)
        journals = {path.stem for path in run.folder.glob("journal/*.jsonl")}
        self._begun = {chunk: self._begun.get(chunk, _Begun()) for chunk in journals - self.done}
        total = Tally()
        total.add(self._finished)
        for chunk, begun in self._begun.items():
            self._read_journal(chunk, begun)
            total.add(begun.tally)
        return total

    @property
    def begun(self) -> int:
        """Chunks that are neither finished nor untouched."""
        return len(self._begun)

    def _take_sidecar(self, chunk: str) -> None:
        try:
            sidecar = files.read_json(self._run.sidecar(chunk), "completions", "failures", "classes", "failure_classes")
        except PlainError:
            return  # its job says what is wrong
        redriven = chunk.startswith("r")
        tally = self._finished
        tally.completions += sidecar["completions"]["rows"]
        tally.classes.update(sidecar["classes"])
        tally.sources.add_counts(sidecar.get("sources", {}))  # older ones had none
        if redriven:  # it asked all that had failed: what failed again is all that still has
            tally.failed = Counter(sidecar["failure_classes"])
        else:
            tally.failed.update(sidecar["failure_classes"])
        self.done.add(chunk)

    def _read_journal(self, chunk: str, begun: _Begun) -> None:
        """Count the whole lines that are new."""
        try:
            with self._run.journal(chunk).open("rb") as file:
                file.seek(begun.read)
                tail = b""
                while block := file.read(BLOCK):
                    *lines, tail = (tail + block).split(b"\n")
                    for line in lines:
                        begun.read += len(line) + 1
                        _count(line, begun.tally)
        except FileNotFoundError:
            pass  # finished and cleaned since


def _count(line: bytes, tally: Tally) -> None:
    if not line.startswith((b'{"completion"', b'{"failure"')):
        return
    try:
        ((kind, record),) = orjson.loads(line).items()
    except orjson.JSONDecodeError:
        return  # its job says what is wrong
    if kind == "failure":
        tally.failed[record["class"]] += 1
        return
    tally.completions += 1
    tally.classes.update(turn["class"] for turn in record["turns"])
    tally.sources.add(record)


def owed(run: Run) -> dict[str, int] | None:
    """The answers that the run owes, by source; None before the manifest is drawn. Recorded ones are not owed."""
    if run.config.training.answers == "recorded":
        return {}
    if not run.manifest_json.exists():
        return None
    return {row["source"]: row["prompts"] * run.config.sampling.n for row in drawn(run)}


def drawn(run: Run) -> list[dict[str, Any]]:
    """The shards of manifest.json, sources first, each with the `prompts` that are of it in the manifest."""
    mix = files.read_json(run.manifest_json, "taken", "sources")
    return [
        shard | {"prompts": shard["own"] + sum(shard["stood_in_for"].values()) + shard["filled"]}
        for shard in [*mix["sources"], *mix.get("others", [])]
    ]

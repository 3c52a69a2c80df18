"""How fast a run goes: the lines of progress.jsonl, summed up over the last five minutes and over all its starts."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workflow_scripts.completions.progress import parse

RECENT_SECONDS = 300.0


@dataclass
class Span:
    """What lines of progress.jsonl say together. Seconds are those in which the run worked."""

    seconds: float = 0.0
    tokens: Counter[str] = field(default_factory=Counter)  # output tokens by server
    turns: Counter[str] = field(default_factory=Counter)  # by class
    failed: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)  # by server

    def add(self, line: dict[str, Any]) -> None:
        self.seconds += line["seconds"]
        self.turns.update(line["classes"])
        self.failed.update(line["failed"])
        self.deaths.update(death["server"] for death in line["deaths"])
        for name, server in line["servers"].items():
            self.tokens[name] += server["output_tokens"]

    def rate(self, server: str | None = None) -> float | None:
        """Output tokens a second, of one server or of all; None if nothing is known."""
        if self.seconds <= 0:
            return None
        return (self.tokens.total() if server is None else self.tokens[server]) / self.seconds


class Pace:
    """progress.jsonl, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines: list[dict[str, Any]] = []  # the recent ones
        self.all = Span()
        self.seats: dict[str, int] = {}  # as granted, by server

    def look(self) -> None:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            for line in parse(whole):
                self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        self.all.add(line)
        self._lines = [kept for kept in self._lines if kept["at"] > line["at"] - RECENT_SECONDS] + [line]
        self.seats |= {name: server["seats"] for name, server in line["servers"].items()}

    def recent(self, now: float) -> Span:
        """The last five minutes; of a run that came to rest, nothing."""
        span = Span()
        for line in self._lines:
            if line["at"] > now - RECENT_SECONDS:
                span.add(line)
        return span

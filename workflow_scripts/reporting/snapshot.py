"""A run at one moment, as numbers: what `watch --once --json` prints and `screen` draws.

    run, folder, at (Unix seconds), state, since
    answers     {"done", "failed", "owed"}          owed: null before the manifest is drawn
    chunks      {"done", "begun", "waiting", "all"}
    tokens      {"output", "prompt"}
    rate        {"now", "five_minutes", "all"}      output tokens a second; null where nothing is known
    left        {"seconds": [least, most]} or null  null: too early to tell, or no answer is left
    store       {"objects", "waiting"} or null      files of finished chunks that wait for their upload
    servers     [{"name", "number", "status", "seats", "in_flight", "running", "queued", "deaths", "now",
                 "five_minutes", "all"}]
    sources     [{"source", "owed", "done", "prompt_tokens", "output_tokens"}]
    classes     {class: {"count", "share", "recent"}}      shares of turns; recent: of the last five minutes, or null
    failures    {class: {"count", "recent"}}
    gpus        [{"index", "name", "percent", "used", "total"}]     MiB; of this machine, while the run lives
    alarms      [text]

state: `drawing` (sources are read, prompts drawn), `running`, `interrupted`, `finished`.
"""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workflow_scripts import files, identity, results_lock
from workflow_scripts.completions.histogram import middle
from workflow_scripts.machine import gpus, host
from workflow_scripts.publishing.batches import batch_chunks, batch_names
from workflow_scripts.records import SourceCounts
from workflow_scripts.reporting import servers_now
from workflow_scripts.reporting.alarms import alarms
from workflow_scripts.reporting.counted import Counted, Tally, owed
from workflow_scripts.reporting.pace import Pace, Span
from workflow_scripts.run import Run

LIVE = ("drawing", "running")
FILES_OF_CHUNK = 3
SILENCE_SECONDS = 120.0
TOO_EARLY = 20  # answers, before which nobody can say how long they will be
WIDTH = 2.0  # standard errors of the mean answer and of the rate, on both sides of what is left


class Watched:
    """A run that is looked at again and again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._counted = Counted(run)
        self._pace = Pace(run.folder / "progress.jsonl")

    def snapshot(self) -> dict[str, Any]:
        """The run now."""
        run, now = self.run, time.time()
        tally = self._counted.look()
        self._pace.look()
        chunks = self._chunks
        done = sum(chunk in self._counted.done for chunk in chunks)
        begun = self._counted.begun
        state = self._state(done)
        recent = self._pace.recent(now) if state == "running" else Span()
        counts = tally.sources.counts()
        wanted = owed(run)
        servers = self._servers(recent)
        failed = tally.failed.total()
        told = [server["now"] for server in servers if server["now"] is not None]
        rate = {
            "now": sum(told) if told else None,
            "five_minutes": recent.rate(),
            "all": self._pace.all.rate(),
        }
        return {
            "run": run.name,
            "folder": str(run.folder),
            "at": now,
            "state": state,
            "since": self._since(state),
            "answers": {
                "done": tally.completions,
                "failed": failed,
                "owed": None if wanted is None else sum(wanted.values()),
            },
            "chunks": {"done": done, "begun": begun, "waiting": max(0, len(chunks) - done - begun), "all": len(chunks)},
            "tokens": {
                "output": sum(source["output_tokens"] for source in counts.values()),
                "prompt": sum(source["prompt_tokens"] for source in counts.values()),
            },
            "rate": rate,
            "left": _left(wanted, counts, tally, [recent, self._pace.all]) if state == "running" else None,
            "store": self._store(),
            "servers": servers,
            "sources": _sources(wanted or {}, counts),
            "classes": _classes(tally, recent),
            "failures": {kind: {"count": n, "recent": recent.failed[kind]} for kind, n in tally.failed.most_common()},
            "gpus": [asdict(card) for card in gpus.use(host.here())] if state in LIVE else [],
            "alarms": alarms(run.folder / "alarms.jsonl"),
        }

    def _state(self, done: int) -> str:
        run = self.run
        if self._is_live():
            return "running" if run.manifest_json.exists() else "drawing"
        finished = self._end.exists() and done == len(self._chunks) and not self._counted.begun
        return "finished" if finished else "interrupted"

    @property
    def _chunks(self) -> list[str]:
        return self.run.chunks() if self.run.config.training.answers == "generated" else []

    @property
    def _end(self) -> Path:
        """What is written last: the account, or of recorded answers the training shards' index."""
        config = self.run.config
        if config.training.answers == "generated":
            return self.run.summary
        return self.run.folder / "training" / identity.training_hash(config, []) / "training.json"

    def _is_live(self) -> bool:
        """Whether its Snakemake lives; of one on another host, whether it writes."""
        held = results_lock.holder(self.run.results)
        if held is None or held[0] != self.run.name:
            return False
        path = self.run.folder / "progress.jsonl"
        writes = path.exists() and time.time() - path.stat().st_mtime < SILENCE_SECONDS
        return held[1].alive() or (not held[1].on_this_host() and writes)

    def _since(self, state: str) -> float | None:
        """When the run began, or came to its end."""
        path = self._end if state == "finished" else self.run.folder / "run.yaml"
        return path.stat().st_mtime if path.exists() and state != "interrupted" else None

    def _servers(self, recent: Span) -> list[dict[str, Any]]:
        rows = []
        for server in servers_now.told(self.run, servers_now.known(self.run)):
            name = server["name"]
            row = {key: server[key] for key in ("name", "number", "status", "in_flight", "running", "queued")}
            row |= {"seats": self._pace.seats.get(name), "deaths": self._pace.all.deaths[name]}
            row |= {"now": server["tokens_per_second"]}
            row |= {"five_minutes": recent.rate(name), "all": self._pace.all.rate(name)}
            rows.append(row)
        return rows

    def _store(self) -> dict[str, int] | None:
        run = self.run
        if run.config.publish.store == "none":
            return None
        folder = run.folder / "published" / identity.publish_hash(run.config)
        receipts = {path.stem: path for path in folder.glob("*.json")}
        chunks = run.chunks()
        batches = [*batch_names(len(chunks)), *run.redrives()]
        stored = {chunk for batch in batches if batch in receipts for chunk in batch_chunks(batch, chunks)}
        objects = sum(len(files.read_json(path, "objects")["objects"]) for path in receipts.values())
        return {"objects": objects, "waiting": FILES_OF_CHUNK * len(self._counted.done - stored)}


def _sources(wanted: dict[str, int], counts: dict[str, SourceCounts]) -> list[dict[str, Any]]:
    return [
        {
            "source": name,
            "owed": wanted.get(name),
            "done": counts[name]["completions"] if name in counts else 0,
            "prompt_tokens": counts[name]["prompt_tokens"] if name in counts else 0,
            "output_tokens": counts[name]["output_tokens"] if name in counts else 0,
        }
        for name in {**wanted, **counts}
    ]


def _classes(tally: Tally, recent: Span) -> dict[str, Any]:
    turns, lately = tally.classes.total(), recent.turns.total()
    return {
        kind: {"count": n, "share": n / turns, "recent": recent.turns[kind] / lately if lately else None}
        for kind, n in tally.classes.most_common()
    }


def _left(
    wanted: dict[str, int] | None, counts: dict[str, SourceCounts], tally: Tally, spans: list[Span]
) -> dict[str, list[float]] | None:
    """Seconds to the end: tokens that are left, by source, at the rates of late and in all, and how unsure both are.

    A rate rests on so many turns as were finished in its span, and is known no better than their number. Answers that
    are in flight count as not begun, and short ones come first: at the beginning it says too little.
    """
    over = tally.completions + tally.failed.total()
    if wanted is None or tally.completions < TOO_EARLY or over >= sum(wanted.values()):
        return None
    mean, error = _mean_output(counts)
    tokens = 0.0
    for name, answers in wanted.items():
        source = counts.get(name)
        done = source["completions"] if source else 0
        own = source["output_tokens"] / done if source and done >= TOO_EARLY else mean
        tokens += max(0, answers - done) * own
    not_done = max(1, sum(wanted.values()) - tally.completions)
    tokens *= max(0, not_done - tally.failed.total()) / not_done  # what failed is not left
    ends: list[float] = []
    for span in spans:
        if rate := span.rate():
            unsure = 1 + WIDTH * math.hypot(error, 1 / math.sqrt(max(1, span.turns.total())))
            ends += [tokens / rate / unsure, tokens / rate * unsure]
    return {"seconds": [min(ends), max(ends)]} if ends else None


def _mean_output(counts: dict[str, SourceCounts]) -> tuple[float, float]:
    """Output tokens of an answer, and the relative standard error of that mean."""
    answers = sum(source["completions"] for source in counts.values())
    mean = sum(source["output_tokens"] for source in counts.values()) / max(1, answers)
    lengths = [
        (middle(lower), count)
        for source in counts.values()
        for bins in source["output_lengths"].values()
        for lower, count in bins.items()
    ]
    turns = sum(count for _, count in lengths)
    if not turns or not mean:
        return mean, 0.0
    center = sum(value * count for value, count in lengths) / turns
    variance = sum(count * (value - center) ** 2 for value, count in lengths) / turns
    return mean, math.sqrt(variance / turns) / center if center else 0.0

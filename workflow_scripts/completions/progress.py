"""What a run makes over time: a line for all its jobs every ten seconds, for `watch` and the report.

results/RUN/progress.jsonl, append-only:

    {"at", "seconds", "servers": {NAME: {"number", "start", "seats", "in_flight", "turns", "prompt_tokens",
     "output_tokens"}}, "classes": {class: turns}, "failed": {class: prompts}, "deaths": [{"server", "at", "start",
     "reason"}]}

Times are Unix seconds; counts are of the `seconds` before `at`. A turn counts when its conversation is finished. What
is counted and not yet written lies in health.json, so that a crash loses ten seconds of a curve, and no answer.
"""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.processes import ProcessId
from workflow_scripts.records import Completion
from workflow_scripts.run import Run
from workflow_scripts.serving import leases
from workflow_scripts.serving.endpoints import Endpoint

LINE_SECONDS = 10.0
SAY_SECONDS = (60.0, 600.0)  # at first, and later on, for the terminal
MOST_OF_A_REASON = 300  # characters


def empty() -> dict[str, Any]:
    """Nothing counted yet: what Health keeps under `progress` and hands to `Progress.flush`."""
    now = time.time()
    return {"since": now, "servers": {}, "deaths": {}, "began": now, "said": {"at": now, "tokens": 0}, "tokens": 0}


class Progress:
    """What one job counts between two flushes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._connected: dict[str, dict[str, int]] = {}
        self._made: dict[str, Counter[str]] = {}

    def connected(self, endpoint: Endpoint, number: int) -> None:
        """This job uses server `number`."""
        self._connected[endpoint.name] = {
            "number": number,
            "start": endpoint.start,
            "seats": endpoint.granted.seats,
        }

    def answered(self, completion: Completion) -> None:
        for turn in completion["turns"]:
            made = self._made.setdefault(turn["server"], Counter())
            made["turns"] += 1
            made["prompt_tokens"] += turn["usage"]["prompt_tokens"]
            made["output_tokens"] += turn["usage"]["completion_tokens"]

    def flush(self, health: dict[str, Any], classes: Counter[str], failed: Counter[str], *, last: bool) -> bool:
        """Add these counts to the run's, and write its line if that is due; whether `health` was changed.

        The caller holds the lock of `health`, and has added `classes` and `failed` to it.
        """
        progress = health["progress"]
        servers = progress["servers"]
        changed = bool(self._made or self._connected or classes or failed)
        connected, self._connected = self._connected, {}  # a thread that reconnects may add to it
        for name, facts in list(connected.items()):
            servers.setdefault(name, {}).update(facts)
        for name, made in self._made.items():
            _add(servers.setdefault(name, {}), made)
            progress["tokens"] += made["output_tokens"]
        _add(progress.setdefault("classes", {}), classes)
        _add(progress.setdefault("failed", {}), failed)
        self._made = {}
        now = time.time()
        if now - progress["since"] >= LINE_SECONDS or (last and changed) or now < progress["since"]:
            self._write_line(health, now)
            changed = True
        shortest, longest = SAY_SECONDS
        if now - progress["said"]["at"] >= min(longest, max(shortest, (now - progress["began"]) / 20)):
            self._say(health, now)
            changed = True
        return changed

    def _write_line(self, health: dict[str, Any], now: float) -> None:
        progress = health["progress"]
        line: dict[str, Any] = {"at": round(now, 2), "seconds": round(max(0.0, now - progress["since"]), 2)}
        line["servers"], line["deaths"] = {}, []
        for name, counted in progress["servers"].items():
            if "number" not in counted:
                continue  # a job of before the last start of Snakemake still counts
            folder = self._run.server(counted["number"])
            made = {key: counted.pop(key, 0) for key in ("turns", "prompt_tokens", "output_tokens")}
            line["servers"][name] = {**counted, "in_flight": in_flight(folder), **made}
            deaths = _deaths(folder, health["run"])
            line["deaths"] += [
                {
                    "server": name,
                    "at": death["at"],
                    "start": death["start"],
                    "reason": death["reason"][:MOST_OF_A_REASON],
                }
                for death in deaths[progress["deaths"].get(name, 0) :]
            ]
            progress["deaths"][name] = len(deaths)
        line |= {"classes": progress.pop("classes"), "failed": progress.pop("failed")}
        with (self._run.folder / "progress.jsonl").open("ab") as file:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        progress["since"] = now

    def _say(self, health: dict[str, Any], now: float) -> None:
        progress = health["progress"]
        said = progress["said"]
        rate = (progress["tokens"] - said["tokens"]) / (now - said["at"])
        failed = sum(health["failed"].values())
        chunks = self._run.chunks()
        finished = sum(self._run.sidecar(chunk).exists() for chunk in chunks)
        say(
            f"{health['answered']:,} answers in this start{f' ({failed:,} failed)' if failed else ''}, "
            f"{rate:,.0f} tokens/s of late; {finished:,} of {len(chunks):,} chunks are finished"
        )
        progress["said"] = {"at": now, "tokens": progress["tokens"]}


def in_flight(folder: Path) -> int:
    """The requests that live jobs have at the server of this folder."""
    path = folder / "seats"
    if not path.exists():
        return 0
    raw = path.read_bytes()
    table = memoryview(raw[: len(raw) // 8 * 8]).cast("q")
    here = ProcessId.here()
    return sum(
        table[row + leases.FLYING]
        for row in range(leases.ROW, len(table) - leases.ROW + 1, leases.ROW)
        if table[row + leases.TICKET]
        and replace(here, pid=table[row + leases.PID], start=table[row + leases.START]).alive()
    )


def parse(raw: bytes) -> list[dict[str, Any]]:
    """The lines of a progress.jsonl; whatever was cut short is left out."""
    found = []
    for line in raw.splitlines():
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict) and value.keys() >= {"at", "seconds", "servers", "classes", "failed", "deaths"}:
            found.append(value)
    return found


def _add(to: dict[str, int], counts: Counter[str]) -> None:
    for key, count in counts.items():
        to[key] = to.get(key, 0) + count


def _deaths(folder: Path, run: str) -> list[dict[str, Any]]:
    """The server's deaths in this run, as serving/standing.py keeps them."""
    path = folder / "standing.json"
    try:
        standing = files.read_json(path, "run", "deaths") if path.exists() else {}
    except PlainError:
        return []
    deaths: list[dict[str, Any]] = standing["deaths"] if standing.get("run") == run else []
    return deaths

"""The run's health, live: failures, and turns that went wrong, counted over all jobs of one start of Snakemake.

results/RUN/servers/health.json    {"run", "answered", "failed": {class: n}, "classes": {class: n},
                                    "turns": {server: [[n, {class: n}], ...]},
                                    "alarms": [...], "stop", "progress"}; `run` is the Snakemake process that it
                                    counts for, `progress` what is to be in the next line of progress.jsonl
results/RUN/alarms.jsonl           {"at", "alarm"} of all starts, for the summary

A rising share of turns that are cut, repeat themselves or are empty is how a corrupt server shows: a server's last
turns are compared with those of all.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files, processes
from workflow_scripts.completions import progress
from workflow_scripts.completions.progress import Progress
from workflow_scripts.config import Limits
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.records import Completion, Failure
from workflow_scripts.run import Run
from workflow_scripts.serving.endpoints import Endpoint

WATCHED = ("cut_in_thinking", "cut_in_answer", "repetition", "empty")
DEGENERATE = ("repetition", "empty")
BUCKET_TURNS = 100
WINDOW_BUCKETS = 5
TELLING_TURNS = 200  # so many of a server are needed for an alarm
RISE = 1.5  # an alarm at so many times the share of all
LEAST_RISE = 0.1  # and at so much above it
FEW_FAILURES = 50  # no share is looked at below
HOPELESS = 5  # failures for each answer
OF_THE_PROMPT = ("too_long", "refused")  # of these any number may be right

FLUSH_SECONDS = 2.0


class Health:
    """What one job counts, and adds to the run's every two seconds. `expected` are the answers that the run owes."""

    def __init__(self, run: Run, expected: int) -> None:
        self._run = run
        self._limits: Limits = run.config.limits
        self._expected = expected
        self._answered = 0
        self._failed: Counter[str] = Counter()
        self._turns: dict[str, Counter[str]] = {}
        self._progress = Progress(run)

    def connected(self, endpoint: Endpoint, number: int) -> None:
        """This job uses server `number`."""
        self._progress.connected(endpoint, number)

    def answered(self, completion: Completion) -> None:
        self._answered += 1
        self._progress.answered(completion)
        for turn in completion["turns"]:
            self._turns.setdefault(turn["server"], Counter())[turn["class"]] += 1

    def failed(self, failure: Failure) -> None:
        self._failed[failure["class"]] += 1

    def flush(self, *, last: bool = False) -> str | None:
        """Add what was counted since to the run's account; why the run must stop, if it must. `last`: of this job."""
        path = self._run.servers / "health.json"
        with files.file_lock(path.with_suffix(".lock")):
            health = _read(path)
            new: list[str] = []
            if health["stop"] is None and (self._answered or self._failed):
                self._add_to(health)
                new = [alarm for alarm in _alarms(health) if alarm not in health["alarms"]]
                health["alarms"] += new
                health["stop"] = self._stop(health)
                new += [health["stop"]] if health["stop"] else []
            classes = sum(self._turns.values(), Counter[str]())
            if self._progress.flush(health, classes, self._failed, last=last):
                tmp = path.with_name(f".{path.name}.tmp")  # not fsynced: it dies with the run
                tmp.write_bytes(orjson.dumps(health))
                tmp.replace(path)
            _record(self._run, new)
        self._answered, self._failed, self._turns = 0, Counter(), {}
        stop: str | None = health["stop"]
        return stop

    def _add_to(self, health: dict[str, Any]) -> None:
        health["answered"] += self._answered
        for kind, count in self._failed.items():
            health["failed"][kind] = health["failed"].get(kind, 0) + count
        for server, classes in self._turns.items():
            buckets = health["turns"].setdefault(server, [])
            if not buckets or buckets[-1][0] >= BUCKET_TURNS:
                buckets.append([0, {}])
                del buckets[:-WINDOW_BUCKETS]
            for kind, count in classes.items():
                buckets[-1][0] += count
                buckets[-1][1][kind] = buckets[-1][1].get(kind, 0) + count
                health["classes"][kind] = health["classes"].get(kind, 0) + count

    def _stop(self, health: dict[str, Any]) -> str | None:
        failed, answered = sum(health["failed"].values()), health["answered"]
        told = ", ".join(f"{count:,} x {kind}" for kind, count in Counter(health["failed"]).most_common(3))
        if failed >= FEW_FAILURES and failed > self._limits.failed * self._expected:
            return (
                f"{failed:,} of {self._expected:,} answers failed in this start ({told}), more than limits.failed "
                f"({self._limits.failed:g}) allows"
            )
        ours = sum(count for kind, count in health["failed"].items() if kind not in OF_THE_PROMPT)
        if ours >= FEW_FAILURES and ours > HOPELESS * answered:
            return f"{answered:,} answers and {failed:,} failures in this start ({told}): the servers don't work"
        for server, (turns, classes) in _windows(health).items():
            share = sum(classes[kind] for kind in DEGENERATE) / turns
            if share > self._limits.degenerate:
                return (
                    f"{server}: {share:.0%} of its last {turns} turns are empty or repeat themselves, more than "
                    f"limits.degenerate ({self._limits.degenerate:g}) allows; look at the answers in the journals"
                )
        return None


def expected_answers(run: Run) -> int:
    """The answers that the run owes: prompts of the manifest times samples."""
    return int(files.read_json(run.manifest_json, "taken")["taken"]) * run.config.sampling.n


def _windows(health: dict[str, Any]) -> dict[str, tuple[int, Counter[str]]]:
    """The last turns of each server that has enough of them: how many, and their classes."""
    found = {}
    for server, buckets in health["turns"].items():
        classes = Counter[str]()
        for _, counted in buckets:
            classes.update(counted)
        if classes.total() >= TELLING_TURNS:
            found[server] = (classes.total(), classes)
    return found


def _alarms(health: dict[str, Any]) -> list[str]:
    """A line for each class whose share in a server's last turns is far above that of all turns."""
    alarms = []
    all_turns = sum(health["classes"].values())
    for server, (turns, classes) in _windows(health).items():
        for kind in WATCHED:
            share, usual = classes[kind] / turns, health["classes"].get(kind, 0) / all_turns
            if share > usual + LEAST_RISE and share > RISE * usual:
                alarms.append(f"{server}: more and more turns are {kind}")
    return alarms


def _record(run: Run, alarms: list[str]) -> None:
    if not alarms:
        return
    with (run.folder / "alarms.jsonl").open("ab") as file:
        for alarm in alarms:
            say(f"alarm: {alarm}")
            file.write(orjson.dumps({"at": time.time(), "alarm": alarm}, option=orjson.OPT_APPEND_NEWLINE))


def _read(path: Path) -> dict[str, Any]:
    here = str(processes.run_process())
    empty: dict[str, Any] = {"run": here, "answered": 0, "failed": {}, "classes": {}, "turns": {}, "alarms": []}
    empty |= {"stop": None, "progress": progress.empty()}
    if not path.exists():
        return empty
    try:
        known: dict[str, Any] = files.read_json(path, *empty)
    except PlainError:
        return empty  # cut short by a power loss
    return known if known["run"] == here else empty

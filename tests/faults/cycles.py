"""Kill-and-resume cycles at seeded random moments: `python -m tests.faults.cycles [--cycles 100] [--seed 0]`.

Each cycle starts a whole run of a small project, sends a signal to one or two kinds of its processes at a random
moment, says the same line again, and ends in the audit. A run whose store is to be hit is published to the real
embedded one. It prints the table of tests/faults/README.md, and fails at the first cycle that loses, doubles or leaves
anything; the cycle's number and the seed repeat it.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from tests.faults import test_run_deaths
from tests.standin.project import Project, Running
from workflow_scripts.serving import environment, supervisor

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
DELAY = '{"delay": 0.3}'
LONGEST_WAIT = 15.0  # seconds; half of the signals are sent within that time, the others between two answers


def pid_of_store(project: Project) -> int:
    state = supervisor.read_state(project.made.store)
    assert state is not None and state.service is not None
    return state.service.pid


def pid_of_stores_supervisor(project: Project) -> int:
    state = supervisor.read_state(project.made.store)
    assert state is not None
    return state.supervisor.pid


VICTIMS: dict[str, Callable[[Project], int]] = test_run_deaths.VICTIMS | {
    "store": pid_of_store,
    "store's supervisor": pid_of_stores_supervisor,
}


@dataclass
class Row:
    """What happened in the cycles of one kind."""

    cycles: int = 0
    before_a_request: int = 0
    missed: int = 0  # the process was gone, or never there
    asked_twice: int = 0

    def add(self, other: "Row") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def find(kind: str, project: Project, run: Running) -> int | None:
    """The pid of that kind of process, if there is one now."""
    if kind == "snakemake":
        return run.pid
    try:
        return VICTIMS[kind](project)
    except (StopIteration, AssertionError, ValueError, FileNotFoundError):
        return None


def cycle(project: Project, chance: random.Random) -> tuple[str, Row]:
    """One cycle; the kind of it, and what happened."""
    kinds = chance.sample(["snakemake", *VICTIMS], chance.choice([1, 1, 2]))
    numbers = [chance.choice(SIGNALS) for _ in kinds]
    answers, seconds = chance.randint(1, 20), chance.uniform(0, LONGEST_WAIT)
    by_time = chance.random() < 0.5
    published = not {"store", "store's supervisor"}.isdisjoint(kinds)
    if published:
        project.config["publish"] = {"store": "embedded", "bucket": "cycles", "prefix": "small/"}
    run = project.start(STANDIN_FAULTS=DELAY)
    began = time.monotonic()
    while run.process.poll() is None:
        there = time.monotonic() - began >= seconds if by_time else project.journaled() >= answers
        if there and None not in [find(kind, project, run) for kind in kinds]:
            break
        time.sleep(0.02)
    row = Row(cycles=1, before_a_request=int(not project.requests()))
    for kind, number in zip(kinds, numbers, strict=True):
        pid = find(kind, project, run) if run.process.poll() is None else None
        try:
            os.kill(pid or 0x7FFFFFFF, number)  # more than any pid
        except ProcessLookupError:
            row.missed = 1
    run.wait()
    project.finish()
    assert bool(list(project.made.folder.glob("published/*/index.json"))) is published
    row.asked_twice = len(project.requests()) - len(set(project.requests()))
    name = " and ".join(f"{number.name} to {kind}" for kind, number in zip(kinds, numbers, strict=True))
    return (name if len(kinds) == 1 else "two at once"), row


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill and resume whole runs, again and again.")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and leave nothing behind
    rows: dict[str, Row] = defaultdict(Row)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        first = Project.make(Path(folder) / "first")
        first.finish()
        store = environment.ensure("seaweedfs")
        (first.home / "envs" / store.folder.name).symlink_to(store.folder)
        for number in range(args.cycles):
            project = first.copy(Path(folder) / f"cycle-{number}")
            project.forget_answers()
            try:
                kind, row = cycle(project, random.Random(f"{args.seed} {number}"))
            except BaseException:
                print(f"cycle {number} of seed {args.seed} failed", flush=True)
                raise
            finally:
                project.end_processes()
            rows[kind].add(row)
            shutil.rmtree(project.folder)
            print(f"cycle {number}: {kind}", file=sys.stderr, flush=True)
    print("| signal | cycles | before the first request | missed | prompts asked twice |\n|---|---|---|---|---|")
    for kind, row in sorted(rows.items()):
        print(f"| {kind} | {row.cycles} | {row.before_a_request} | {row.missed} | {row.asked_twice} |")
    seconds = time.monotonic() - started
    print(f"\n{args.cycles} cycles of seed {args.seed} in {seconds:,.0f} s: nothing lost, nothing doubled.")


if __name__ == "__main__":
    main()

"""Kill-and-resume cycles at seeded random moments: `python -m tests.faults.cycles [--cycles 100] [--seed 0]`.

Each cycle starts a whole run of a small project, sends a signal to one or two kinds of its processes at a random
moment, says the same line again, and ends in the audit. It prints the table of tests/faults/README.md, and fails at
the first cycle that loses, doubles or leaves anything; the cycle's number and the seed repeat it.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.test_run_deaths import VICTIMS
from tests.standin.project import Project, Running

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
DELAY = '{"delay": 0.3}'
LONGEST_WAIT = 6.0  # seconds; a fifth of the signals is sent that early, the others between two answers


@dataclass
class Row:
    """What happened in the cycles of one kind."""

    cycles: int = 0
    before_an_answer: int = 0
    after_the_end: int = 0
    asked_twice: int = 0


def signal_one(kind: str, number: signal.Signals, project: Project, run: Running) -> bool:
    """Send the signal; False if there is no such process now."""
    victims: dict[str, Callable[[], int]] = {"snakemake": lambda: run.pid}
    victims |= {name: (lambda find=find: find(project)) for name, find in VICTIMS.items()}  # type: ignore[misc]
    try:
        os.kill(victims[kind](), number)
    except (ProcessLookupError, StopIteration, AssertionError, ValueError, FileNotFoundError):
        return False
    return True


def cycle(project: Project, chance: random.Random) -> tuple[str, Row]:
    """One cycle; the kind of it, and what happened."""
    kinds = chance.sample(["snakemake", *VICTIMS], chance.choice([1, 1, 2]))
    numbers = [chance.choice(SIGNALS) for _ in kinds]
    answers, seconds = chance.randint(1, 20), chance.uniform(0, LONGEST_WAIT)
    early = chance.random() < 0.2
    run = project.start(STANDIN_FAULTS=DELAY)
    began = time.monotonic()
    while run.process.poll() is None:
        if time.monotonic() - began >= seconds if early else project.journaled() >= answers:
            break
        time.sleep(0.02)
    row = Row(cycles=1, before_an_answer=int(not project.requests()), after_the_end=int(run.process.poll() is not None))
    for kind, number in zip(kinds, numbers, strict=True):
        signal_one(kind, number, project, run)
    run.wait()
    project.finish()
    row.asked_twice = len(project.requests()) - len(set(project.requests()))
    name = " and ".join(f"{number.name} to {kind}" for kind, number in zip(kinds, numbers, strict=True))
    return (name if len(kinds) == 1 else "two at once"), row


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill and resume whole runs, again and again.")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows: dict[str, Row] = defaultdict(Row)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        first = Project.make(Path(folder) / "first")
        first.finish()
        for number in range(args.cycles):
            project = first.copy(Path(folder) / f"cycle-{number}")
            project.forget_answers()
            before = len(project.requests())
            try:
                kind, row = cycle(project, random.Random(f"{args.seed} {number}"))
            except BaseException:
                print(f"cycle {number} of seed {args.seed} failed", flush=True)
                raise
            finally:
                project.end_processes()
            assert before == 0
            total = rows[kind]
            total.cycles += 1
            total.before_an_answer += row.before_an_answer
            total.after_the_end += row.after_the_end
            total.asked_twice += row.asked_twice
    print("| signal | cycles | before the first request | after the end | prompts asked twice |\n|---|---|---|---|---|")
    for kind, row in sorted(rows.items()):
        print(f"| {kind} | {row.cycles} | {row.before_an_answer} | {row.after_the_end} | {row.asked_twice} |")
    seconds = time.monotonic() - started
    print(f"\n{args.cycles} cycles of seed {args.seed} in {seconds:,.0f} s: nothing lost, nothing doubled.")


if __name__ == "__main__":
    main()

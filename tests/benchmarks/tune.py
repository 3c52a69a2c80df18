"""Whether tuning finds the best candidate, how often, and what that costs against measuring each in full.

`python -m tests.benchmarks.tune` simulates 20 races for each difference, on the fleet's model of continuous batching
(tests/standin/fleet.py) and a clock of its own, by the product's own decisions (tuning/decide.py, tuning/steady.py).
`python -m tests.benchmarks.tune real` has a few by real processes: `snakemake tune` on launched stand-ins.

Of six candidates one is faster than the others, which are alike. A start of a server is off by START_NOISE, and each
second by NOISE, of which the next second keeps KEPT.
"""

import argparse
import math
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.standin.fleet import Batch, Lengths
from tests.standin.tuning import told, tunable
from workflow_scripts.tuning.decide import Measured, Race
from workflow_scripts.tuning.steady import Look, Watch

DIFFERENCES = (1.0, 0.2, 0.05, 0.0)
CANDIDATES, SEEDS = 6, 20
SEATS, STEP, MEAN = 64, 0.05, 400.0
SAMPLE, SECONDS, ROUNDS = 5000, 60.0, 3
START_SECONDS = 90.0  # of a server
START_NOISE, NOISE, KEPT = 0.015, 0.08, 0.7  # standard deviations, as shares of the speed


def measure(speed: float, watch: Watch, chance: random.Random, seed: int) -> float:
    """A server of this speed, looked at every second until that is enough; the seconds that it took, start and all."""
    batch: Batch[int] = Batch(SEATS, STEP)
    lengths = Lengths(MEAN, seed=seed)
    start, drift = chance.gauss(1.0, START_NOISE), 0.0
    sent = ended = 0
    second = 0
    while True:
        while sent < min(watch.sample, ended + 4 * SEATS):
            batch.join(batch.now, lengths.tokens(str(sent)), sent)
            sent += 1
        seen = Look(float(second), batch.made, batch.running, 0.0)
        if watch.is_enough(seen, batch.running, ended):
            return START_SECONDS + second
        drift = KEPT * drift + chance.gauss(0.0, NOISE * math.sqrt(1 - KEPT**2))
        ended += len(batch.advance(batch.now + max(0.1, speed * start * (1 + drift))))
        second += 1


@dataclass
class Raced:
    """20 races: how each ended, and the seconds of servers and of the clock that they took, against all in full."""

    ends: Counter[str] = field(default_factory=Counter)
    clock: float = 0.0
    clock_in_full: float = 0.0
    servers: float = 0.0
    servers_in_full: float = 0.0
    rounds: int = 0
    lost: float = 0.0  # speed, against the best, as a share

    def row(self, difference: float, slots: int) -> str:
        ends = [f"{self.ends[end]} of {SEEDS}" for end in ("found", "tie", "wrong")]
        return (
            f"| {difference:.0%} | {slots} | {' | '.join(ends)} | {self.lost / SEEDS:.2%} | "
            f"{self.rounds / SEEDS:.1f} | {self.clock / self.clock_in_full:.0%} | "
            f"{self.servers / self.servers_in_full:.0%} |"
        )


def race(difference: float, slots: int, seed: int, raced: Raced) -> None:
    """One race; the faster candidate is none of the first, which is what there is now."""
    chance = random.Random(f"{difference} {slots} {seed}")
    names = ["as_is", *(f"c{number}" for number in range(1, CANDIDATES))]
    best = chance.choice(names[1:])
    speeds = {name: 1.0 + (difference if name == best else 0.0) for name in names}
    running = Race(names, ROUNDS, slots)
    while entrants := running.next_round():
        seconds = SECONDS * 2 ** (running.round - 1)
        done: list[tuple[str, Measured]] = []
        took: list[float] = []
        for place, name in enumerate(entrants):
            # Side by side nobody knows yet how the others do; one after the other everybody does.
            def hopeless(so_far: Measured, name: str = name) -> bool:
                return running.hopeless(name, so_far)

            watch = Watch(seconds, SAMPLE, hopeless)
            took.append(measure(speeds[name], watch, chance, seed))
            speed = watch.speed()
            assert speed is not None
            done.append((name, speed))
            if (place + 1) % slots == 0 or place + 1 == len(entrants):
                for one in done:
                    running.add(*one)
                raced.clock += max(took)
                raced.servers += sum(took)
                done, took = [], []
    for number in range(ROUNDS):  # what each candidate in full would have taken
        whole = [measure(speeds[name], Watch(SECONDS * 2**number, SAMPLE), chance, seed) for name in names]
        raced.servers_in_full += sum(whole)
        raced.clock_in_full += sum(max(whole[at : at + slots]) for at in range(0, len(whole), slots))
    winner = running.best()
    assert winner is not None
    if difference == 0.0:
        end = "tie" if winner == "as_is" and running.standing(best) == "tie" else "wrong"
    else:
        end = "found" if winner == best else running.standing(best)
        end = "wrong" if end == "slower" else end
    raced.ends[end] += 1
    raced.rounds += running.round
    raced.lost += 1 - speeds[winner] / max(speeds.values())


def simulated() -> None:
    print("| the best is faster by | servers | found | a tie | wrong | speed lost | rounds | clock | servers' time |")
    print("|" + "---|" * 9)
    for slots in (1, 8):
        for difference in DIFFERENCES:
            raced = Raced()
            for seed in range(SEEDS):
                race(difference, slots, seed, raced)
            print(raced.row(difference, slots), flush=True)


def real(seconds: float) -> None:
    """`snakemake tune` with the differences as flags of launched stand-ins."""
    print("| the best is faster by | best | gain measured | its spread | seconds of the command |\n|" + "---|" * 5)
    for difference in DIFFERENCES:
        with tempfile.TemporaryDirectory() as folder:
            faster = {"schedule-conservativeness": 1.0 + difference, "page-size": 1}
            tried = [{"name": "alike", "args": {"page-size": 1}}, {"name": "fast", "args": faster}]
            project = tunable(Path(folder) / "project", 20_000, tried, seconds=seconds, rounds=3)
            began = time.monotonic()
            result = project.run("tune")
            assert result.code == 0, result.output
            found = told(project)
            project.no_process_left()
            gain = found["gain"]
            print(
                f"| {difference:.0%} | {found['winner']['name']} | {gain['share']:+.1%} | {gain['spread']:.1%} | "
                f"{time.monotonic() - began:.0f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="How well tuning finds the best candidate.")
    parser.add_argument("part", nargs="?", choices=("simulated", "real"), default="simulated")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a measurement, with real processes")
    args = parser.parse_args()
    if args.part == "real":
        real(args.seconds)
    else:
        simulated()


if __name__ == "__main__":
    main()

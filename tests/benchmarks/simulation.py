"""Ideas that the product does not have, tried on the fleet's model with no processes and no clock.

`python -m tests.benchmarks.simulation` prints a table: 20,000 answers by eight servers of 64 seats, the worst of three
seeds. It knows nothing of what starting a job costs but the seconds until it sends.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.standin.fleet import Batch, Lengths

PROMPTS, SERVERS, SEATS = 20_000, 8, 64
STEP = 0.02
JOB_START = 1.0  # seconds from one job's end until the next one sends, where it takes its lease
MEAN = 250.0


class Outcome(NamedTuple):
    """`seats`: share in use until the last chunk was leased; `times_bound`: the whole against the lower bound."""

    seats: float
    times_bound: float


@dataclass(eq=False)
class Job:
    """A chunk that holds a lease."""

    pending: deque[int]
    flying: int = 0

    @property
    def left(self) -> int:
        return len(self.pending) + self.flying


@dataclass(eq=False)
class Host:
    """A server, and the jobs that hold its leases, the front first."""

    batch: Batch[Job]
    leases: int
    starting: int = 0
    jobs: list[Job] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.leases - self.starting - len(self.jobs)

    def fill(self, now: float) -> None:
        """Send what the leases allow: each job may use the seats that older ones do not want."""
        seats = self.batch.seats
        for job in self.jobs:
            while job.pending and job.flying < seats:
                job.flying += 1
                self.batch.join(now, job.pending.popleft(), job)
            seats -= min(job.left, seats)


def lower_bound(lengths: Iterable[int], steps: Iterable[float], seats: int = SEATS) -> float:
    """Seconds that no arrangement can beat: every seat always taken, or the longest answer alone on a server."""
    lengths, steps = list(lengths), list(steps)
    return max(
        sum(lengths) / sum(seats / step for step in steps),
        max(lengths) * min(steps) * (0.5 + 0.5 / seats),
    )


def simulate(chunks: list[list[int]], leases: int, steps: list[float]) -> Outcome:
    """Answers of these lengths, chunk by chunk, by servers with these steps."""
    hosts = [Host(Batch(SEATS, step), leases) for step in steps]
    todo = deque(chunks)
    starts: list[tuple[float, int, Host]] = []
    order = itertools.count()
    now = leased = 0.0

    def start_jobs(delay: float) -> None:
        while todo and len(starts) < len(todo):
            host = max(hosts, key=lambda host: host.free)
            if host.free == 0:
                return
            host.starting += 1
            heapq.heappush(starts, (now + delay, next(order), host))

    start_jobs(0.0)
    while starts or any(host.jobs for host in hosts):
        ending = min(hosts, key=lambda host: host.batch.next_end())
        if starts and starts[0][0] <= ending.batch.next_end():
            now, _, host = heapq.heappop(starts)
            host.starting -= 1
            for job in host.batch.advance(now):
                job.flying -= 1
            host.jobs.append(Job(deque(todo.popleft())))
            if not todo:
                leased = now
        else:
            host, now = ending, ending.batch.next_end()
            for job in host.batch.advance(now):
                job.flying -= 1
        host.jobs = [job for job in host.jobs if job.left]
        host.fill(now)
        start_jobs(JOB_START)
    used = 0.0
    for host in hosts:
        host.batch.advance(now)
        used += host.batch.busy_until(leased)
    bound = lower_bound(itertools.chain.from_iterable(chunks), steps)
    return Outcome(used / (SEATS * len(hosts) * leased) if leased else 1.0, now / bound)


def even(lengths: list[int], size: int) -> list[list[int]]:
    """Chunks of one size."""
    return [lengths[at : at + size] for at in range(0, len(lengths), size)]


def tapered(lengths: list[int], size: int, last_share: float = 0.2) -> list[list[int]]:
    """As many chunks, but those of the last fifth shrink to a tenth of the size; the others grow by what they lack."""
    count = len(lengths) // size
    last = int(count * last_share)
    weights = [1.0] * (count - last) + [1.0 - 0.9 * (number + 1) / last for number in range(last)]
    edges = [round(len(lengths) * edge / sum(weights)) for edge in itertools.accumulate(weights)]
    return [lengths[start:end] for start, end in itertools.pairwise([0, *edges])]


def longest_first(lengths: list[int], size: int) -> list[list[int]]:
    """What nobody can do who does not know the lengths."""
    return even(sorted(lengths, reverse=True), size)


def shortest_first(lengths: list[int], size: int) -> list[list[int]]:
    return even(sorted(lengths), size)


def one_pool(lengths: list[int], _: int) -> list[list[int]]:
    """A chunk for each answer: with enough leases, what one driver of all servers would do with one queue."""
    return even(lengths, 1)


def worst(
    cut: Callable[[list[int], int], list[list[int]]], size: int, leases: int, *, capped: bool = True, slow: float = 1.0
) -> Outcome:
    """Of three seeds."""
    found = []
    for seed in range(3):
        lengths = Lengths(MEAN, capped=capped, seed=seed)
        answers = [lengths.tokens(str(number)) for number in range(PROMPTS)]
        found.append(simulate(cut(answers, size), leases, [STEP * slow] + [STEP] * (SERVERS - 1)))
    return Outcome(min(one.seats for one in found), max(one.times_bound for one in found))


def table() -> Iterator[tuple[str, Outcome]]:
    for leases in (1, 2, 3, 4, 8):
        yield f"chunks of 100, {leases} leases", worst(even, 100, leases)
    for leases in (2, 4):
        yield f"chunks of 100, {leases} leases, tapered", worst(tapered, 100, leases)
    for size, leases in ((50, 4), (50, 7), (500, 2)):
        yield f"chunks of {size}, {leases} leases", worst(even, size, leases)
    yield "chunks of 100, 4 leases, longest answers first", worst(longest_first, 100, 4)
    yield "chunks of 100, 4 leases, shortest answers first", worst(shortest_first, 100, 4)
    for size, leases in ((100, 4), (100, 8), (500, 3)):
        yield f"chunks of {size}, {leases} leases, uncapped", worst(even, size, leases, capped=False)
    yield "chunks of 100, 4 leases, one server 1.5 times slower", worst(even, 100, 4, slow=1.5)


def main() -> None:
    print("| | seats in use | times the lower bound |\n|---|---|---|")
    for name, outcome in table():
        print(f"| {name} | {outcome.seats:.1%} | {outcome.times_bound:.3f} |", flush=True)


if __name__ == "__main__":
    main()

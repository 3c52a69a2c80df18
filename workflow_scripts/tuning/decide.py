"""Who is slower, who is measured again, who wins: arithmetic on measurements, nothing else.

A candidate's speed is the mean of its measurements. How sure that is has two parts: how much the speed moved within a
measurement, and how much it differs from one start of the server to the next (other GPUs, clocks, heat, prompts), which
no longer look at one start tells. The second is taken from all candidates that were measured more than once; until
there are any it is taken for two percent.

Two candidates are apart where their speeds differ by so many standard errors of the difference that, were all alike,
none would be called slower in 95 of 100 races. Any may turn out the fastest, and each round is another chance to err:
that is Bonferroni's bound over all pairs and rounds, 2.4 errors of two candidates in three rounds, 3.3 of six.

Ten parts of one measurement tell little of their own error: by chance they are far too calm now and then. So an error
is taken for as large as the middle one of all, in the same time, but for three times its own at most.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

START_SPREAD = 0.02  # of a speed, from start to start, as long as nothing is known
START_SPREAD_WEIGHT = 4  # repeats that it counts for
SURE = 2.0  # standard errors on each side hold a value in 95 of 100 cases
DOUBT = 0.05  # the share of races in which one is called slower, and all are alike
HOPELESS = 1.0  # standard errors more, for a candidate that is not measured to its end
WORTH = 0.02  # a smaller difference is not worth another round
BLOCKS = 10  # of one measurement
CALM = 3.0  # times as large as it looks, an error of ten parts is once in a thousand cases
TINY = 1e-12  # the square of an error, at least

Standing = Literal["best", "tie", "slower"]


@dataclass(frozen=True)
class Measured:
    """Output tokens a second over `seconds` of steady work, and the standard error within them."""

    rate: float
    error: float
    seconds: float


def measured(points: Sequence[tuple[float, float]]) -> Measured | None:
    """The speed by looks of (seconds, tokens so far); None of fewer than three.

    The looks are parted into ten blocks at most.
    """
    if len(points) < 3 or points[-1][0] <= points[0][0]:
        return None
    steps = len(points) - 1
    count = min(BLOCKS, steps)
    edges = [points[steps * number // count] for number in range(count + 1)]
    parts = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(edges)]
    seconds = points[-1][0] - points[0][0]
    rate = (points[-1][1] - points[0][1]) / seconds
    # Blocks are of nearly one length; a longer one counts for more.
    off = [(length, made / length - rate) for length, made in parts if length > 0]
    spread = sum(length * one**2 for length, one in off) / seconds
    # What a part has of the one before it makes the mean less sure than so many independent parts would.
    kept = sum(length * one * before for (_, before), (length, one) in itertools.pairwise(off)) / seconds
    return Measured(rate, math.sqrt((spread + 2 * max(0.0, kept)) / (count - 1)), seconds)


@dataclass(frozen=True)
class Pace:
    """How fast a server is against the middle one, both with the same flags; `error` is its standard error."""

    share: float = 1.0
    error: float = 0.0

    def evened(self, one: Measured) -> Measured:
        """What was measured on it, as it would have been on the middle one."""
        rate = one.rate / self.share
        return replace(one, rate=rate, error=math.hypot(one.error / self.share, self.error * rate))


def paces(found: Mapping[int, Measured]) -> dict[int, Pace]:
    """Each server's, by measurements with the same flags. Servers count as alike unless they differ beyond doubt."""
    middle = statistics.median(one.rate for one in found.values()) if found else 0.0
    told = {server: Pace() for server in found}
    for server, one in found.items():
        if one.rate > 0 and middle > 0:
            error = math.hypot(one.error / one.rate, START_SPREAD)
            if abs(one.rate / middle - 1) > apart(len(found), 1) * error:
                told[server] = Pace(one.rate / middle, error)
    return told


@dataclass(frozen=True)
class Speed:
    """What is known of a candidate's speed: `error` is its standard error, in tokens a second."""

    rate: float
    error: float

    @property
    def spread(self) -> float:
        """Half of the interval that holds it in 95 of 100 cases, as a share of it."""
        return SURE * self.error / self.rate if self.rate else 0.0

    def slower_than(self, other: "Speed", errors: float) -> bool:
        """Whether it is, beyond doubt."""
        return other.rate - self.rate > errors * math.hypot(self.error, other.error)


def start_spread(of_candidates: Iterable[Sequence[Measured]]) -> float:
    """The standard deviation of a candidate's speed from start to start, as a share of it."""
    squares, degrees = 0.0, 0
    for found in of_candidates:
        if len(found) > 1 and (mean := statistics.fmean(one.rate for one in found)) > 0:
            within = statistics.fmean(one.error**2 for one in found)  # which is no start's
            squares += (sum((one.rate - mean) ** 2 for one in found) - (len(found) - 1) * within) / mean**2
            degrees += len(found) - 1
    squares = max(0.0, squares) + START_SPREAD_WEIGHT * START_SPREAD**2
    return math.sqrt(squares / (degrees + START_SPREAD_WEIGHT))


def combined(found: Sequence[Measured], from_start_to_start: float) -> Speed:
    """One candidate's measurements, each counted by how sure it is."""
    typical = from_start_to_start * statistics.fmean(one.rate for one in found)
    weights = [1 / max(one.error**2 + typical**2, TINY) for one in found]
    rate = sum(weight * one.rate for weight, one in zip(weights, found, strict=True)) / sum(weights)
    return Speed(rate, math.sqrt(1 / sum(weights)))


def apart(candidates: int, rounds: int) -> float:
    """The standard errors by which one of so many must differ from the fastest to be called slower."""
    pairs = max(1, candidates * (candidates - 1) // 2)
    return statistics.NormalDist().inv_cdf(1 - DOUBT / 2 / (pairs * rounds))


def no_surer_than_most(found: Mapping[str, Sequence[Measured]]) -> dict[str, list[Measured]]:
    """The measurements, those with a smaller error than the middle one of all (a share, in the same time) with its."""
    noise = [one.error**2 * one.seconds / one.rate**2 for many in found.values() for one in many if one.rate > 0]
    middle = statistics.median(noise) if noise else 0.0
    return {
        name: [
            replace(one, error=max(one.error, min(CALM * one.error, one.rate * math.sqrt(middle / one.seconds))))
            for one in many
        ]
        for name, many in found.items()
    }


@dataclass
class Race:
    """The candidates' race, round by round. `names` in the order of preference: the first is what there is now.

    `slots` are servers that run side by side: where there are more than candidates, each is measured on several. What
    there is now is measured on every one of them first, which tells how alike they are.
    """

    names: list[str]
    rounds: int
    slots: int = 1
    found: dict[str, list[Measured]] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)  # can't start, died, or answers otherwise
    round: int = 0  # that was handed out last, from 1
    _alive: list[str] = field(default_factory=list)

    def add(self, name: str, one: Measured) -> None:
        self.found.setdefault(name, []).append(one)

    def drop(self, name: str) -> None:
        """Never to be measured again, and never the best."""
        self.out.add(name)

    def speeds(self) -> dict[str, Speed]:
        """Of every candidate that was measured."""
        return self._speeds(self.found)

    def hopeless(self, name: str, so_far: Measured) -> bool:
        """Whether a measurement under way can end now: the candidate is slower than another by far."""
        speeds = self._speeds({**self.found, name: [*self.found.get(name, []), so_far]})
        errors = self._errors() + HOPELESS
        return any(speeds[name].slower_than(speeds[one], errors) for one in self.found.keys() - self.out - {name})

    def next_round(self) -> list[str]:
        """Who is measured now, some several times; nobody where nothing would be gained."""
        if self.round == 0:
            self._alive = list(self.names)
        else:
            close = self._close()
            if self.round >= self.rounds or len(close) < 2 or self._is_settled(close):
                return []
            # As there is none that is beyond doubt, the better half; what there is now stays in as long as it is close.
            best_first = sorted(close, key=lambda name: -self.speeds()[name].rate)
            kept = set(best_first[: max(2, math.ceil(len(close) / 2))]) | {self.names[0]} & set(close)
            self._alive = [name for name in self.names if name in kept]
        self.round += 1
        if self.round == 1 and self.slots > 1:
            others = self.names[1:]
            return [self.names[0]] * self.slots + others * max(1, self.slots // max(1, len(others)))
        return self._on_all(self._alive)

    def joined(self, name: str) -> list[str]:
        """One more round, of a new candidate and the best so far."""
        best = self.best()
        self._alive = [*([] if best is None else [best]), name]
        self.names.append(name)
        self.round += 1
        return self._on_all(self._alive)

    def better(self) -> list[str]:
        """Those that are faster than what there is now beyond doubt, the fastest first."""
        speeds = self._running()
        now = speeds.get(self.names[0])
        found = [name for name, speed in speeds.items() if now is not None and self._is_slower(now, speed)]
        return sorted(found, key=lambda name: -speeds[name].rate)

    def _on_all(self, names: list[str]) -> list[str]:
        return names * max(1, self.slots // len(names))

    def best(self) -> str | None:
        """The one to take: of those in the last round that are not told apart from the fastest, the first by name."""
        return next(iter(self._close()), None)

    def standing(self, name: str) -> Standing:
        """How a candidate that was measured, and is not out, stands to the best one."""
        best = self.best()
        if best is None or name == best:
            return "best"
        speeds = self.speeds()
        fastest = max((speeds[one] for one in self._close()), key=lambda speed: speed.rate)
        return "slower" if self._is_slower(speeds[name], fastest) else "tie"

    def _speeds(self, found: Mapping[str, Sequence[Measured]]) -> dict[str, Speed]:
        found = no_surer_than_most(found)
        spread = start_spread(found.values())
        return {name: combined(found[name], spread) for name in self.names if name in found}

    def _running(self) -> dict[str, Speed]:
        return {name: speed for name, speed in self.speeds().items() if name not in self.out}

    def _close(self) -> list[str]:
        """Those of the last round that are not told apart from the fastest of them."""
        speeds = {name: speed for name, speed in self._running().items() if name in self._alive}
        if not speeds:
            return []
        fastest = max(speeds.values(), key=lambda speed: speed.rate)
        return [name for name, speed in speeds.items() if not self._is_slower(speed, fastest)]

    def _is_slower(self, speed: Speed, fastest: Speed) -> bool:
        return speed.slower_than(fastest, self._errors())

    def _errors(self) -> float:
        return apart(len(self.names) - len(self.out), self.rounds)

    def _is_settled(self, close: list[str]) -> bool:
        """Whether a difference between those, if there is one, is too small to matter."""
        speeds = self.speeds()
        fastest = max((speeds[name] for name in close), key=lambda speed: speed.rate)
        others = [speeds[name] for name in close if speeds[name] is not fastest]
        return all(
            fastest.rate - other.rate + SURE * math.hypot(fastest.error, other.error) < WORTH * fastest.rate
            for other in others
        )

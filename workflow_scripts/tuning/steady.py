"""When a server's work is steady, and when it was looked at for long enough; told from looks alone, without a clock.

The ramp lasts until as many answers have ended as were at work at once: every seat has changed hands about once, and
answers of all ages run side by side. It is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from workflow_scripts.tuning.decide import Measured, measured

LONGEST_RAMP = 900.0  # seconds; then it is measured all the same, and told
FEWEST = 0.25  # of the time that is measured, before which nobody is given up


@dataclass(frozen=True)
class Look:
    """A server at one moment (seconds of a clock that only goes on): tokens made and retractions since its start."""

    at: float
    tokens: float
    running: float
    retracted: float


@dataclass
class Watch:
    """Looks at one server under its load, which is a sample of so many prompts, for `seconds` of steady work.

    `hopeless` says of what was measured so far whether there is no need to go on.
    """

    seconds: float
    sample: int
    hopeless: Callable[[Measured], bool] = lambda _: False
    looks: list[Look] = field(default_factory=list)
    steady_from: int | None = None  # the first look of steady work
    settled: bool = False
    cut_short: bool = False
    used_up: bool = False
    _most: int = 0  # requests that were in flight at once

    def is_enough(self, look: Look, in_flight: int, answered: int, failed: int = 0) -> bool:
        """Take one more look, with the requests in flight, the answers and failures so far; whether it was the last.

        Prompts that fail have no seat, as a rule, so they don't tell that seats have changed hands.
        """
        self.looks.append(look)
        self._most = max(self._most, in_flight)
        if self.steady_from is None:
            self.settled = 0 < self._most <= answered
            if self.settled or look.at - self.looks[0].at > LONGEST_RAMP:
                self.steady_from = len(self.looks) - 1
        passed = look.at - self.steady[0].at if self.steady else 0.0
        if FEWEST * self.seconds <= passed < self.seconds and (so_far := self.speed()) is not None:
            self.cut_short = self.hopeless(so_far)
        self.used_up = self.sample - answered - failed <= self._most  # from here on seats stay empty
        return passed >= self.seconds or self.cut_short or self.used_up

    @property
    def steady(self) -> list[Look]:
        """The looks at steady work."""
        return [] if self.steady_from is None else self.looks[self.steady_from :]

    def speed(self) -> Measured | None:
        """The speed of the steady work; None where that is too little to tell."""
        return measured([(look.at, look.tokens) for look in self.steady])

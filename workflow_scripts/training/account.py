"""What became of every turn and of every supervised token: kept, or dropped for a reason that is counted."""

from collections import Counter
from typing import Any


class Account:
    """Supervised tokens in = kept + dropped, by construction of who calls it and by `check`."""

    def __init__(self) -> None:
        self.turns = self.tokens = 0
        self.rows_kept = self.tokens_kept = 0
        self.rows_dropped = Counter[str]()
        self.tokens_dropped = Counter[str]()

    def take(self, response: int) -> None:
        """A turn comes in with so many supervised tokens."""
        self.turns += 1
        self.tokens += response

    def drop(self, reason: str, response: int) -> None:
        """The whole turn is dropped."""
        self.rows_dropped[reason] += 1
        self.tokens_dropped[reason] += response

    def keep(self, response: int, cut: int) -> None:
        """The turn is a row with so many supervised tokens; `cut` more were cut off."""
        self.rows_kept += 1
        self.tokens_kept += response
        if cut:
            self.tokens_dropped["cut at max_tokens"] += cut

    def report(self) -> dict[str, Any]:
        """As training.json has it."""
        assert self.turns == self.rows_kept + self.rows_dropped.total()
        assert self.tokens == self.tokens_kept + self.tokens_dropped.total()
        return {
            "turns": self.turns,
            "dropped": dict(sorted(self.rows_dropped.items())),
            "supervised_tokens_in": self.tokens,
            "supervised_tokens": self.tokens_kept,
            "supervised_tokens_dropped": dict(sorted(self.tokens_dropped.items())),
        }

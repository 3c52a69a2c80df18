"""Rows longer than `training.max_tokens`: how they are cut, and what a window costs in supervised tokens."""

from typing import Any

from workflow_scripts.config.outputs import LONGER, Longer

WINDOWS = (2048, 4096, 8192, 16384)  # tokens; what trainers are usually given


def cut(prompt: int, response: int, window: int, longer: Longer) -> tuple[int, int]:
    """Which tokens of a row stay: (start, end), of a prompt of so many tokens and its supervised response after it.

    `right` keeps the first `window` tokens. `supervised` cuts the prompt's beginning first, then the response's end;
    one token of the prompt always stays, for a supervised token needs one before it. `drop` keeps all or nothing.
    """
    whole = prompt + response
    if whole <= window:
        return 0, whole
    match longer:
        case "right":
            return 0, window
        case "supervised":
            start = min(whole - window, prompt - 1)
            return start, start + window
        case "drop":
            return 0, 0


def supervised(prompt: int, start: int, end: int) -> int:
    """How many tokens of the response a cut keeps."""
    return max(0, end - max(prompt, start))


class Costs:
    """What each window would cost of the rows that are kept for everything else.

    A row that a window leaves fewer than `least` supervised tokens of is lost as a whole.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._rows = dict.fromkeys(WINDOWS, 0)
        self._lost = {window: dict.fromkeys(LONGER, 0) for window in WINDOWS}
        self._tokens = 0

    def add(self, prompt: int, response: int) -> None:
        """Count a row by its lengths in tokens."""
        self._tokens += response
        for window in WINDOWS:
            if prompt + response <= window:
                break  # and into the wider ones
            self._rows[window] += 1
            for longer in LONGER:
                kept = supervised(prompt, *cut(prompt, response, window, longer))
                self._lost[window][longer] += response - (kept if kept >= self._least else 0)

    def report(self) -> list[dict[str, Any]]:
        """Of each window: rows that are longer, and supervised tokens lost, with their share, by the way to cut."""
        return [
            {
                "window": window,
                "longer_rows": self._rows[window],
                "lost": dict(lost),
                "share": {way: round(count / self._tokens, 6) if self._tokens else 0.0 for way, count in lost.items()},
            }
            for window, lost in self._lost.items()
        ]

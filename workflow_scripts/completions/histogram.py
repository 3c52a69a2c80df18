"""Counts of token numbers, four bins an octave: small enough for a sidecar, fine enough for a chart."""

from bisect import bisect_right

# 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 23, ..., 2^24
EDGES = sorted({0, *(round(2 ** (quarter / 4)) for quarter in range(24 * 4 + 1))})


def bin_of(tokens: int) -> str:
    """The lower edge of the bin that holds `tokens`, as JSON's keys are."""
    return _NAMES[bisect_right(EDGES, tokens) - 1]


def middle(lower: str) -> float:
    """What a number in the bin of this lower edge is about."""
    at = EDGES.index(int(lower))
    return (EDGES[at] + EDGES[min(at + 1, len(EDGES) - 1)] - 1) / 2


_NAMES = [str(edge) for edge in EDGES]

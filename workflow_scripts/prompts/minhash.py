"""Sets of runs of characters, their MinHash sketches, and an index of the sketches' bands (LSH)."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash

RUN = 5  # characters
SKETCH = 128  # values
SEED = 1
MISSED = 0.002  # of pairs whose similarity is the threshold
CROWD = 500  # prompts that share a band and are told of
CHARACTERS_AT_ONCE = 2 << 20

Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]

_POWERS = [np.uint64(pow(0x9E3779B97F4A7C15, power, 2**64)) for power in range(RUN)]


def _mixed(hashes: Hashes) -> Hashes:
    """Every bit of a hash depends on all of it (the finalizer of splitmix64)."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def _hashed(text: str) -> Hashes:
    """A hash of each run of five characters, in order; of a shorter text as if spaces followed."""
    points = np.frombuffer(text.ljust(RUN).encode("utf-32-le", "surrogatepass"), np.uint32)
    hashes = np.zeros(len(points) - RUN + 1, np.uint64)
    for place, power in enumerate(_POWERS):
        hashes += points[place : len(points) - RUN + 1 + place] * power
    return _mixed(hashes)


def runs(text: str) -> Hashes:
    """The set of a text's runs of five characters, as sorted hashes; empty for an empty text."""
    if not text:
        return np.empty(0, np.uint64)
    hashes: Hashes = np.sort(_hashed(text))
    first: NDArray[np.bool_] = np.append(True, hashes[1:] != hashes[:-1])
    return hashes[first]


def jaccard(one: Hashes, other: Hashes) -> float:
    """What two sets, each sorted, have in common: 0 to 1; 1 for two empty ones."""
    both = len(one) + len(other)
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (both - shared) if both else 1.0


def sketches(texts: Sequence[str]) -> NDArray[np.uint32]:
    """A MinHash sketch of each text: a row of 128 values, of which two rows share about as many as the sets do runs."""
    rows = [np.empty((0, SKETCH), np.uint32)]
    for some in _portions(texts):
        # Hashed as one; a run that reaches from one text into the next is left out.
        padded = [text.ljust(RUN) for text in some]
        hashes = _hashed("".join(padded))
        lengths = np.array([len(text) for text in padded])
        ends = np.cumsum(lengths)
        inside = np.ones(len(hashes) + RUN - 1, bool)
        for place in range(1, RUN):
            inside[ends - place] = False
        offsets = np.concatenate([[0], np.cumsum(lengths - RUN + 1)]).astype(np.uint64)
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes[inside[: len(hashes)]], offsets, SKETCH, SEED)
        rows.append(np.array(matrix.to_rows(), np.uint32))
    return np.concatenate(rows)


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    start = characters = 0
    for end, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= CHARACTERS_AT_ONCE or end == len(texts):
            yield texts[start:end]
            start, characters = end, 0


def band_width(threshold: float) -> int:
    """Values in a band: as many as leave no more than 0.2 % of pairs at the threshold without a band in common."""
    fits = [width for width in range(1, SKETCH + 1) if (1 - threshold**width) ** (SKETCH // width) <= MISSED]
    return max(fits, default=1)


def band_hashes(sketched: NDArray[np.uint32], width: int) -> Hashes:
    """A hash of each band of each sketch: a row a sketch, a column a band."""
    bands = SKETCH // width
    parts = sketched[:, : bands * width].reshape(len(sketched), bands, width)
    hashes = np.tile(np.arange(bands, dtype=np.uint64), (len(sketched), 1))
    for place in range(width):
        hashes = _mixed(hashes * np.uint64(0x9E3779B97F4A7C15) + parts[:, :, place])
    return hashes


class BandIndex:
    """Whose bands have which hash: sorted arrays, each at least twice as long as the next, merged as they grow."""

    def __init__(self) -> None:
        self._levels: list[tuple[Hashes, Numbers]] = []

    def add(self, numbers: Numbers, hashes: Hashes) -> None:
        """Add sketches by number, which must be above all that are there, with a row of band hashes each."""
        flat, whose = hashes.ravel(), np.repeat(numbers, hashes.shape[1])
        order = np.argsort(flat, kind="stable")
        level = flat[order], whose[order]
        while self._levels and len(self._levels[-1][0]) < 2 * len(level[0]):
            older = self._levels.pop()
            flat, whose = (np.concatenate(both) for both in zip(older, level, strict=True))
            order = np.argsort(flat, kind="stable")
            level = flat[order], whose[order]
        self._levels.append(level)

    def sharing(self, hashes: Hashes) -> dict[int, list[Numbers]]:
        """By row of `hashes`: the numbers that share a band with it, an array a band, the lowest 500 or so of each."""
        found: dict[int, list[Numbers]] = {}
        flat = hashes.ravel()
        order = np.argsort(flat)  # what lies together in the index is looked up together
        for known, numbers in self._levels:
            low = np.searchsorted(known, flat[order], "left")
            there = np.flatnonzero(known[np.minimum(low, len(known) - 1)] == flat[order])
            high = np.searchsorted(known, flat[order][there], "right")
            for at, end in zip(there.tolist(), high.tolist(), strict=True):
                found.setdefault(int(order[at]) // hashes.shape[1], []).append(numbers[low[at] : end][:CROWD])
        return found

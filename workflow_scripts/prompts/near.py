"""Near-duplicates: prompts whose texts are almost the same, found by MinHash LSH and then compared exactly.

Compared are the sets of overlapping runs of five characters of the messages' text, as `plain` (sources/prompt_ids.py)
makes it: case, spacing and Unicode form don't count, and languages without spaces do. Two prompts are near if the
Jaccard similarity of these sets (shared runs / all runs) is at least the threshold, for the whole text and also for the
text without system prompt and tools: a long system prompt in common does not make two questions the same.

The error. Candidate pairs come from MinHash sketches of 128 values (rensa's R-MinHash), cut into bands of which one
must match as a whole (LSH: Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4). The bands are as wide as they
can be with at most 0.2 % of pairs right at the threshold missed; above it fewer are, below a threshold of 0.05 more.
Each candidate pair is compared by its true similarity, so that no pair below the threshold passes. Of the prompts that
share one band only the first 500 or so are seen, and of those that share any the 500 that share most are compared: in
greater crowds, of prompts that are much alike but not near, more may be missed. All of it is deterministic.
"""

from collections.abc import Sequence

import numpy as np
import orjson
import zstandard

from workflow_scripts.prompts.minhash import (
    CROWD,
    SKETCH,
    BandIndex,
    Hashes,
    Numbers,
    band_hashes,
    band_width,
    jaccard,
    runs,
    sketches,
)
from workflow_scripts.prompts.mix import Ref, Text
from workflow_scripts.sources.prompt_ids import Turns, asked, plain, plain_tools

KNOWN_BYTES = 64 << 20  # of runs that are kept


def text_of(messages: str, tools: str | None, turns: Turns = "first") -> Text:
    """Of a shard's row, JSON as it stands there."""
    side = asked(orjson.loads(messages), turns)
    said = [plain(message["content"]) for message in side if message["role"] != "system"]
    frame = [plain(message["content"]) for message in side if message["role"] == "system"]
    if tools:
        frame.append(plain_tools(orjson.loads(tools)))
    return Text("\n".join(said), "\n".join(frame))


class NearDuplicates:
    """The prompts taken so far, in order: a later one is near to one of them, or is taken too."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._band = band_width(threshold)
        # Four standard deviations below: of 30,000 near pairs one has sketches that share less.
        self._hopeful = threshold - 4 * (threshold * (1 - threshold) / SKETCH) ** 0.5
        self._index = BandIndex()
        self._refs: list[Ref] = []
        self._turns: list[bytes] = []  # packed
        self._frames: list[str] = []
        self._interned: dict[str, str] = {}
        self._sketches = np.empty((1024, SKETCH), np.uint32)
        self._known: dict[int, Hashes] = {}  # runs of some prompts, and their size
        self._known_bytes = 0
        self._pack = zstandard.ZstdCompressor(level=1).compress
        self._unpack = zstandard.ZstdDecompressor().decompress
        self._batch: Sequence[Text] = ()
        self._new = np.empty((0, SKETCH), np.uint32)  # the batch's sketches, and their bands
        self._bands: Hashes = np.empty((0, SKETCH // self._band), np.uint64)
        self._shared = np.empty(self._bands.shape, bool)  # with another of the batch
        self._found: dict[int, list[Numbers]] = {}  # who of earlier batches shares a band, by index
        self._fresh: dict[int, list[int]] = {}  # those of this batch that are taken, by band
        self._taken: list[int] = []  # of the batch, the last so many of all

    def begin(self, batch: Sequence[Text]) -> None:
        """Look up prompts of which some or all are to be placed next, in this order."""
        if self._taken:
            first = len(self._refs) - len(self._taken)
            self._index.add(np.arange(first, len(self._refs)), self._bands[self._taken])
        self._batch, self._taken = batch, []
        self._new = sketches([text.turns for text in batch])
        self._bands = band_hashes(self._new, self._band)
        self._found = self._index.sharing(self._bands)
        _, inverse, counts = np.unique(self._bands, return_inverse=True, return_counts=True)
        self._shared = (counts[inverse] > 1).reshape(self._bands.shape)
        self._fresh = {}

    def place(self, index: int, ref: Ref) -> tuple[Ref, float] | None:
        """The first taken prompt that `batch[index]` is near to, and the similarity; None if there is none: it's taken.

        The similarity is that of the whole texts or that without system prompt and tools, the lower one.
        """
        bands = self._bands[index][self._shared[index]].tolist()
        if (near := self._first_near(index, bands)) is not None:
            return near
        number, text = len(self._refs), self._batch[index]
        for band in bands:
            self._fresh.setdefault(band, []).append(number)
        if number == len(self._sketches):
            self._sketches = np.concatenate([self._sketches, np.empty_like(self._sketches)])
        self._sketches[number] = self._new[index]
        self._refs.append(ref)
        self._turns.append(self._pack(text.turns.encode()))
        self._frames.append(self._interned.setdefault(text.frame, text.frame))
        self._taken.append(index)
        return None

    def _first_near(self, index: int, bands: list[int]) -> tuple[Ref, float] | None:
        fresh = [np.array(self._fresh[band][:CROWD]) for band in bands if band in self._fresh]
        found = [*self._found.get(index, []), *fresh]
        if not found:
            return None
        numbers, counts = np.unique(np.concatenate(found), return_counts=True)
        numbers = numbers[np.argsort(-counts, kind="stable")[:CROWD]]
        estimates = (self._sketches[numbers] == self._new[index]).mean(axis=1)
        hopeful = np.sort(numbers[estimates >= self._hopeful]).tolist()
        if not hopeful:
            return None
        turns = runs(self._batch[index].turns)
        for other in hopeful:
            similarity = self._similarity(turns, self._batch[index].frame, other)
            if similarity >= self.threshold:
                return self._refs[other], similarity
        return None

    def _similarity(self, turns: Hashes, frame: str, other: int) -> float:
        theirs = self._runs_of(other)
        similarity = jaccard(turns, theirs)
        if similarity < self.threshold or frame == self._frames[other]:  # what both have only brings them nearer
            return similarity
        whole = np.union1d(turns, runs(frame)), np.union1d(theirs, runs(self._frames[other]))
        return min(similarity, jaccard(*whole))

    def _runs_of(self, number: int) -> Hashes:
        """The runs of a taken prompt; in a crowd the same ones are asked for again and again."""
        found = self._known.get(number)
        if found is None:
            found = runs(self._unpack(self._turns[number]).decode())
            self._known_bytes += found.nbytes
            if self._known_bytes > KNOWN_BYTES:
                self._known, self._known_bytes = {}, found.nbytes
            self._known[number] = found
        return found

"""Prompts that hold what a benchmark asks: n-grams of words that both have.

A word is a run of letters and digits, in NFKC and lower case; all else parts words. A Chinese or Japanese character is
a word of its own, for these scripts put no spaces. A prompt is a hit if it shares an n-gram with a benchmark row (with
a threshold: that share of the row's different n-grams), 13 words by default, as in GPT-3's and lm-evaluation-harness'
decontamination. N-grams never reach over the end of a text: a column of the row, a message of the prompt. Of a row
whose texts all have fewer words than n, the longest must stand in the prompt as a whole; one of fewer than SHORTEST
words must be a whole message, or every prompt with "What is it?" in it would be a hit.

Each word that a benchmark has gets a number, every other word is 0 and can be in no match. A rolling 64-bit hash of the
numbers finds what may match, and the numbers themselves decide: nothing depends on Python's hashes, or on luck.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from workflow_scripts.errors import PlainError
from workflow_scripts.identity import ContentHashes
from workflow_scripts.jobs import say
from workflow_scripts.prompts import benchmarks, inputs
from workflow_scripts.prompts.filters import Hit
from workflow_scripts.run import Run
from workflow_scripts.sources.prompt_ids import Turns, asked

SHORTEST = 5
SHOWN_WORDS = 40
ROWS_AT_ONCE = 2000
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it loses nothing modulo 2^64

_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+")
_ASCII_WORD = re.compile(r"[a-z0-9]+")

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def words(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def rolling(numbers: Numbers, n: int) -> Hashes:
    """The hash of each n numbers in a row, by where they start; of fewer than n numbers there is none."""
    count = len(numbers) - n + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    unsigned = numbers.astype(np.uint64)
    found = np.zeros(count, np.uint64)
    for offset in range(n):
        found = found * FACTOR + unsigned[offset : offset + count]
    return found


class BenchmarkRow(NamedTuple):
    """A row of a benchmark: where it stands, and its texts."""

    place: str
    texts: list[str]


class _Grams(NamedTuple):
    """All n-grams of one n: their sorted hashes, and for each where it starts among the benchmark's words.

    `beginnings` says of the hashes' first bits whether any begins so: one look instead of a search, for almost all.
    """

    n: int
    hashes: Hashes
    starts: Numbers
    shift: np.uint64
    beginnings: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, n: int, hashes: Hashes, starts: Numbers) -> "_Grams":
        order = np.argsort(hashes, kind="stable")  # equal ones in the order of the rows
        bits = max(10, min(28, len(hashes).bit_length() + 4))
        shift = np.uint64(64 - bits)
        beginnings = np.zeros(1 << bits, np.bool_)
        beginnings[hashes >> shift] = True
        return cls(n, hashes[order], starts[order], shift, beginnings)


class Decontaminate:
    """Drops prompts that share an n-gram with a benchmark row; see above."""

    reason = "contaminated"

    def __init__(
        self, rows: Iterable[BenchmarkRow], n: int = 13, threshold: float = 0.0, turns: Turns = "first"
    ) -> None:
        self._threshold = threshold
        self._turns = turns
        self._n = n
        self._numbers: dict[str, int] = {}
        self._words = [""]
        self._places: list[str] = []
        self._messages: dict[tuple[int, ...], int] = {}  # the shortest rows: a whole message, and the row
        starts: dict[int, list[range]] = defaultdict(list)
        texts: list[list[int]] = []
        owners: list[int] = []  # of each word's text, the row
        end = 0
        for index, row in enumerate(rows):
            self._places.append(row.place)
            held = [self._numbered(text) for text in row.texts]
            compared = [text for text in held if len(text) >= n]
            if not compared and (longest := max(held, key=len, default=[])):
                if len(longest) < SHORTEST:
                    if longest:
                        self._messages.setdefault(tuple(longest), index)
                    continue
                compared = [longest]
            for text in compared:
                size = min(n, len(text))
                starts[size].append(range(end, end + len(text) - size + 1))
                texts.append([*text, 0])  # where the text ends
                owners += [index] * (len(text) + 1)
                end += len(text) + 1
        self._text: Numbers = np.array([number for text in texts for number in text], np.int64)
        self._owner: Numbers = np.array(owners, np.int64)
        self._grams = [self._sorted(size, spans) for size, spans in sorted(starts.items(), reverse=True)]
        self._distinct = self._distinct_grams() if threshold > 0 else {}

    def _numbered(self, text: str) -> list[int]:
        found = []
        for word in words(text):
            number = self._numbers.get(word)
            if number is None:
                number = self._numbers[word] = len(self._words)
                self._words.append(word)
            found.append(number)
        return found

    def _sorted(self, n: int, spans: list[range]) -> _Grams:
        starts: Numbers = np.concatenate([np.arange(span.start, span.stop, dtype=np.int64) for span in spans])
        return _Grams.of(n, rolling(self._text, n)[starts], starts)

    def _distinct_grams(self) -> dict[int, int]:
        """For each row, how many different n-grams it has."""
        found: dict[int, int] = {}
        for grams in self._grams:
            owners = self._owner[grams.starts]
            pairs = np.unique(np.stack([owners.astype(np.uint64), grams.hashes]), axis=1)
            rows, counts = np.unique(pairs[0], return_counts=True)
            found |= dict(zip(rows.astype(int).tolist(), counts.tolist(), strict=True))
        return found

    def check(self, candidates: pl.DataFrame) -> dict[int, Hit]:
        """The candidates that hold a benchmark's text; `repeats` is FILE:ROW, `detail` the text that both have."""
        hits: dict[int, Hit] = {}
        messages = candidates["messages"]
        for start in range(0, len(messages), ROWS_AT_ONCE):
            self._check(messages[start : start + ROWS_AT_ONCE].to_list(), start, hits)
        return hits

    def _check(self, conversations: list[str], first: int, hits: dict[int, Hit]) -> None:
        numbers: list[int] = []
        ends: list[int] = []  # of each candidate, in `numbers`
        get = self._numbers.get
        for at, conversation in enumerate(conversations, first):
            for message in asked(orjson.loads(conversation), self._turns):
                numbered = [get(word, 0) for word in words(message["content"])]
                if len(numbered) < SHORTEST and (row := self._messages.get(tuple(numbered))) is not None:
                    hits.setdefault(at, Hit(self._places[row], self._shown(numbered)))
                numbers += numbered
                numbers.append(0)  # no n-gram reaches over a message's end
            ends.append(len(numbers))
        text: Numbers = np.array(numbers, np.int64)
        zeros: Numbers = np.concatenate([[0], np.cumsum(text == 0)])
        found: dict[int, dict[int, list[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(list))
        for grams in self._grams:
            known = np.nonzero(zeros[grams.n :] == zeros[: -grams.n])[0] if len(text) >= grams.n else text[:0]
            if not len(known):
                continue
            hashes = rolling(text, grams.n)[known]
            likely = grams.beginnings[hashes >> grams.shift]
            known, hashes = known[likely], hashes[likely]
            low = np.searchsorted(grams.hashes, hashes, "left")
            high = np.searchsorted(grams.hashes, hashes, "right")
            for index in np.nonzero(high > low)[0].tolist():
                at = int(known[index])
                candidate = int(np.searchsorted(ends, at, "right"))
                if first + candidate in hits or (self._threshold == 0 and candidate in found):
                    continue
                for start in grams.starts[low[index] : high[index]].tolist():
                    if np.array_equal(self._text[start : start + grams.n], text[at : at + grams.n]):
                        found[candidate][int(self._owner[start])].append((at, start, grams.n))
                        if self._threshold == 0:
                            break
        for candidate, by_row in found.items():
            for row, matches in by_row.items():
                different = len({tuple(text[at : at + n].tolist()) for at, _, n in matches})
                if self._threshold == 0 or different >= self._threshold * self._distinct[row]:
                    hits[first + candidate] = Hit(self._places[row], self._overlap(text, *matches[0]))
                    break

    def _overlap(self, text: Numbers, at: int, start: int, n: int) -> str:
        """The words that stand in both, from the first n that match for as long as they agree."""
        end = n
        owner = self._owner[start]
        while (
            at + end < len(text)
            and start + end < len(self._text)
            and self._owner[start + end] == owner
            and text[at + end] == self._text[start + end] != 0
        ):
            end += 1
        return self._shown(text[at : at + end].tolist())

    def _shown(self, numbers: list[int]) -> str:
        shown = " ".join(self._words[number] for number in numbers[:SHOWN_WORDS])
        return f"{shown} ... ({len(numbers)} words)" if len(numbers) > SHOWN_WORDS else shown

    @property
    def rows(self) -> int:
        """Benchmark rows that are looked for."""
        return len(self._places)


def open_decontaminate(run: Run, recorded: list[inputs.Input]) -> Decontaminate:
    """The filter of a run's `prompts.decontaminate`, by what lock.json recorded of its files."""
    settings = run.config.prompts.decontaminate
    hashes = ContentHashes()
    rows: list[BenchmarkRow] = []
    for entry, was in zip(settings.files, recorded, strict=True):
        for file in inputs.checked_files("decontaminate", entry, was, inputs.benchmark_files, hashes):
            before = len(rows)
            rows += [
                BenchmarkRow(f"{file.path}:{number}", texts)
                for number, texts in benchmarks.read(file.path, settings.columns)
            ]
            if len(rows) == before:
                raise PlainError(f"prompts.decontaminate: {file.path} holds no rows")
    hashes.save()
    found = Decontaminate(rows, settings.ngram, settings.threshold, run.config.prompts.turns)
    say(f"decontaminating against {found.rows:,} benchmark rows, by {settings.ngram}-grams of words")
    return found

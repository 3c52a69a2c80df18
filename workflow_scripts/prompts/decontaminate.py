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

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from workflow_scripts.identity import ContentHashes
from workflow_scripts.jobs import say
from workflow_scripts.prompts import benchmarks, inputs
from workflow_scripts.prompts.filters import Hit, stretches
from workflow_scripts.run import Run
from workflow_scripts.sources.prompt_ids import Turns, asked

SHORTEST = 5
SHOWN_WORDS = 40
PROMPTS_AT_ONCE = 2000
CHARACTERS_AT_ONCE = 8 << 20  # each word takes some 60 bytes meanwhile
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


class _Match(NamedTuple):
    """Where a candidate's n-gram stands among its words, and where it may stand among the benchmark's."""

    at: int
    n: int
    starts: Numbers


class Decontaminate:
    """Drops prompts that share an n-gram with a benchmark row; see above."""

    reason = "contaminated"

    def __init__(
        self, rows: Iterable[BenchmarkRow], n: int = 13, threshold: float = 0.0, turns: Turns = "first"
    ) -> None:
        self._counting = threshold > 0
        self._turns: Turns = turns
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
        self._needed = self._needed_grams(threshold)

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

    def _needed_grams(self, threshold: float) -> Numbers:
        """For each row, how many of its different n-grams make a hit."""
        needed: Numbers = np.ones(len(self._places), np.int64)
        if not self._counting:
            return needed
        share = Fraction(str(threshold))  # as it was written: 0.55 of 100 is 55
        for grams in self._grams:
            pairs = np.unique(np.stack([self._owner[grams.starts].astype(np.uint64), grams.hashes]), axis=1)
            rows, counts = np.unique(pairs[0], return_counts=True)
            for row, count in zip(rows.astype(int).tolist(), counts.tolist(), strict=True):
                needed[row] = math.ceil(share * count)
        return needed

    def check(self, candidates: pl.DataFrame) -> dict[int, Hit]:
        """The candidates that hold a benchmark's text; `repeats` is FILE:ROW, `detail` the text that both have."""
        hits: dict[int, Hit] = {}
        messages = candidates["messages"]
        for stretch in stretches(messages.str.len_bytes().to_list(), PROMPTS_AT_ONCE, CHARACTERS_AT_ONCE):
            text, ends = self._read(messages[stretch.start : stretch.stop].to_list(), stretch.start, hits)
            for candidate, matches in self._find(text, ends).items():
                if stretch.start + candidate not in hits and (hit := self._decide(text, matches)) is not None:
                    hits[stretch.start + candidate] = hit
        return hits

    def _read(self, conversations: list[str], first: int, hits: dict[int, Hit]) -> tuple[Numbers, list[int]]:
        """The words of candidates as numbers, and where each candidate ends; messages that are a hit go to `hits`."""
        numbers: list[int] = []
        ends: list[int] = []
        get = self._numbers.get
        for at, conversation in enumerate(conversations, first):
            for message in asked(orjson.loads(conversation), self._turns):
                numbered = [get(word, 0) for word in words(message["content"])]
                if len(numbered) < SHORTEST and (row := self._messages.get(tuple(numbered))) is not None:
                    hits.setdefault(at, Hit(self._places[row], self._shown(numbered)))
                numbers += numbered
                numbers.append(0)  # no n-gram reaches over a message's end
            ends.append(len(numbers))
        return np.array(numbers, np.int64), ends

    def _find(self, text: Numbers, ends: list[int]) -> dict[int, list[_Match]]:
        """The n-grams that candidates seem to share with rows, by their hashes."""
        zeros: Numbers = np.concatenate([[0], np.cumsum(text == 0)])
        found: dict[int, list[_Match]] = defaultdict(list)
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
                found[candidate].append(_Match(at, grams.n, grams.starts[low[index] : high[index]]))
        return found

    def _decide(self, text: Numbers, matches: list[_Match]) -> Hit | None:
        """Whether a candidate with these matches is a hit: of the first row in question, by the first match with it."""
        row = self._enough(text, matches) if self._counting else None
        if self._counting and row is None:
            return None
        for match in matches:
            starts = self._equal(text, match)
            if row is not None:
                starts = starts[self._owner[starts] == row]
            if len(starts):
                return Hit(self._places[self._owner[starts[0]]], self._overlap(text, match.at, int(starts[0]), match.n))
        return None

    def _enough(self, text: Numbers, matches: list[_Match]) -> int | None:
        """The first row of which the candidate holds as many different n-grams as make a hit."""
        held: Numbers = np.zeros(len(self._places), np.int64)
        different = {text[match.at : match.at + match.n].tobytes(): match for match in matches}
        for match in different.values():
            held[np.unique(self._owner[self._equal(text, match)])] += 1
        enough = np.flatnonzero(held >= self._needed)
        return int(enough[0]) if len(enough) else None

    def _equal(self, text: Numbers, match: _Match) -> Numbers:
        """Where a match's words really stand, in the order of the rows."""
        same = np.ones(len(match.starts), np.bool_)
        for offset in range(match.n):
            same &= self._text[match.starts + offset] == text[match.at + offset]
        return match.starts[same]

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
    for entry in settings.files:
        for file in inputs.checked_files("decontaminate", entry, recorded, inputs.benchmark_files, hashes):
            rows += [
                BenchmarkRow(f"{file.path}:{number}", texts)
                for number, texts in benchmarks.read(file.path, settings.columns)
            ]
    hashes.save()
    found = Decontaminate(rows, settings.ngram, settings.threshold, run.config.prompts.turns)
    say(f"decontaminating against {found.rows:,} benchmark rows, by {settings.ngram}-grams of words")
    return found

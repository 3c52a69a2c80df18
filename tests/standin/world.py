"""A made-up world of seventeen sources with planted repeats, of which the right manifest is known.

Texts are of random words, so that two of them are near only where that was planted. Each plant has a text of its own.
"""

import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.standin.shards import shard_row
from workflow_scripts.prompts.mix import DUPLICATE, NEAR_DUPLICATE
from workflow_scripts.records import Message
from workflow_scripts.sources.conversion import ShardRow
from workflow_scripts.sources.prompt_ids import Tools, identify, plain, prompt_side

SOURCES = [f"s{number:02d}" for number in range(17)]
THRESHOLD = 0.8


class Row(NamedTuple):
    """A prompt of the world, with what was recorded as its answer."""

    source: str
    messages: list[Message]
    tools: Tools

    @property
    def prompt_id(self) -> str:
        return identify(self.messages, self.tools).first_id

    @property
    def text(self) -> str:
        """What near-duplicates are told by: the question."""
        return "\n".join(compared(one["content"]) for one in prompt_side(self.messages) if one["role"] == "user")


class Dropped(NamedTuple):
    """What is right for a prompt that is not taken."""

    reason: str
    repeats: str | None


class Pair(NamedTuple):
    """Two prompts of a planted similarity; the first is of an earlier source."""

    first: Row
    second: Row
    similarity: float


@dataclass
class World:
    """Rows by source, and what is right for those that repeat another. Make one with `made_up`.

    Other plants (of a benchmark's text, of an earlier run) are made with `text` and `add`, and told of in `dropped`.
    """

    seed: int = 0
    rows: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in SOURCES})
    dropped: dict[tuple[str, str], Dropped] = field(default_factory=dict)  # by source and prompt id
    pairs: list[Pair] = field(default_factory=list)  # near ones, and some that are not quite
    chains: list[tuple[Row, Row, Row]] = field(default_factory=list)  # the second is near both others, they are not

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        letters = "abcdefghijklmnopqrstuvwxyzéäß"
        self._words = ["".join(self.chance.choices(letters, k=self.chance.randint(2, 10))) for _ in range(8000)]

    def text(self, words: int | None = None) -> str:
        """A new text of so many words (20 to 200)."""
        return " ".join(self.chance.choices(self._words, k=words or self.chance.randint(20, 200)))

    def add(self, source: str, text: str, system: str | None = None, tools: Tools = None) -> Row:
        """A prompt of this text, with an answer of its own."""
        messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        answer = self.text(self.chance.randint(1, 60))
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        row = Row(source, messages, tools)
        self.rows[source].append(row)
        return row

    def two(self, *, apart: bool) -> tuple[str, str]:
        """A source, and another further down or the same."""
        first, second = sorted(self.chance.sample(SOURCES, 2))
        return (first, second) if apart else (first, first)

    def edited(self, text: str, low: float, high: float) -> tuple[str, float]:
        """The text with words replaced until its similarity is from `low` to `high`, and the similarity."""
        while True:
            words = text.split()
            similarity = 1.0
            while similarity > high:
                words[self.chance.randrange(len(words))] = self.chance.choice(self._words)
                similarity = overlap(compared(text), compared(" ".join(words)))
            if similarity >= low:
                return " ".join(words), similarity

    # --- plants ---

    def plant_same(self, change: Callable[[str], str], *, apart: bool) -> None:
        """A text and a copy of it that counts as the same; of one source the one with the lower id stays."""
        first, second = self.two(apart=apart)
        base = f"{self.text()} ﬁne Straße café"
        rows = [self.add(first, base), self.add(second, change(base))]
        keep, drop = rows if apart else sorted(rows, key=lambda row: row.prompt_id)
        self.dropped[drop.source, drop.prompt_id] = Dropped(DUPLICATE, keep.prompt_id)

    def plant_near(self, low: float, high: float, *, apart: bool) -> None:
        """Two texts of a similarity in this range; of one source the one with the lower id stays."""
        first, second = self.two(apart=apart)
        base = self.text(self.chance.randint(60, 200))
        text, similarity = self.edited(base, low, high)
        rows = [self.add(first, base), self.add(second, text)]
        keep, drop = rows if apart else sorted(rows, key=lambda row: row.prompt_id)
        self.pairs.append(Pair(keep, drop, similarity))
        if similarity >= THRESHOLD:
            self.dropped[drop.source, drop.prompt_id] = Dropped(NEAR_DUPLICATE, keep.prompt_id)

    def plant_chain(self) -> None:
        """Three texts in three sources: the second is near the first, the third near the second alone."""
        places = sorted(self.chance.sample(SOURCES, 3))
        while True:
            base = self.text(150)
            middle, _ = self.edited(base, 0.82, 0.86)
            end, _ = self.edited(middle, 0.82, 0.86)
            if overlap(compared(base), compared(end)) < 0.75:
                break
        one, two, three = (self.add(source, text) for source, text in zip(places, (base, middle, end), strict=True))
        self.dropped[two.source, two.prompt_id] = Dropped(NEAR_DUPLICATE, one.prompt_id)
        self.chains.append((one, two, three))

    def plant_frame(self) -> None:
        """A long system prompt or long tools in common, which makes nothing the same; and in two more, a question."""
        system = self.text(300)
        tools: Tools = [{"type": "function", "function": {"name": "f", "description": self.text(300)}}]
        for source in self.two(apart=True):
            self.add(source, self.text(30), system=system)
            self.add(source, self.text(30), tools=tools)
        question = self.text(30)
        for source in self.two(apart=True):
            self.add(source, question, system=self.text(100))

    # --- what is right ---

    def shards(self) -> dict[str, list[ShardRow]]:
        """The sources' rows as the normalizer writes them."""
        return {
            name: [shard_row(number, row.messages, row.tools) for number, row in enumerate(rows)]
            for name, rows in self.rows.items()
        }

    def right(self, *, near: bool) -> dict[tuple[str, str], Dropped | None]:
        """For every prompt of the world, by source and id: None where it is taken, if all sources give all."""
        dropped = {key: why for key, why in self.dropped.items() if near or why.reason != NEAR_DUPLICATE}
        return {(row.source, row.prompt_id): dropped.get((row.source, row.prompt_id)) for row in self.all()}

    def all(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]


SAME: list[Callable[[str], str]] = [
    str.upper,
    lambda text: "  " + text.replace(" ", "\n\t ", 3) + " ",
    lambda text: unicodedata.normalize("NFD", text),
]


def made_up(size: int = 10, seed: int = 0) -> World:
    """`size` prompts a source that repeat nothing, and about as many plants of each kind in all."""
    world = World(seed)
    for source in SOURCES:
        for _ in range(size):
            world.add(source, world.text())
    for _ in range(size):
        for apart in (True, False):
            for change in SAME:
                world.plant_same(change, apart=apart)
            world.plant_near(0.82, 0.98, apart=apart)
            world.plant_near(0.5, 0.78, apart=apart)
        world.plant_same(lambda text: text, apart=True)
        world.plant_chain()
        world.plant_frame()
    for rows in world.rows.values():
        world.chance.shuffle(rows)
    return world


def compared(text: str) -> str:
    """A question as repeats are told by."""
    return plain(text)


def overlap(one: str, other: str) -> float:
    """The Jaccard similarity of two texts' runs of five characters, computed plainly."""
    a, b = ({text[at : at + 5] for at in range(len(text) - 4)} for text in (one, other))
    return len(a & b) / len(a | b)

"""The mix as asked: how many prompts each source gives, and which ones. Pure arithmetic and draws, no files."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple, Protocol

Take = int | Literal["all"]


AT_ONCE = 10_000  # candidates that are asked for and compared together, at most
AT_LEAST = 256  # and where fewer are wanted: looking for near-duplicates one by one takes long

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near_duplicate"


class Ref(NamedTuple):
    """A prompt: its row among the candidates of a shard."""

    shard: str
    row: int


class Text(NamedTuple):
    """What near-duplicates are told by: the messages, and apart from them system prompt and tools ("" for none)."""

    turns: str
    frame: str


class Drop(NamedTuple):
    """A prompt that is not taken, and why. `repeats` is the taken prompt that it repeats, or what a filter names."""

    ref: Ref
    reason: str
    repeats: Ref | str | None
    detail: str


class Candidate(NamedTuple):
    """A prompt that may be drawn. Equal keys make two of them the same; `drop` is what a filter says against it."""

    ref: Ref
    key: str
    text: Text | None = None  # only where near-duplicates are looked for
    drop: Drop | None = None


class Near(Protocol):
    """Tells near-duplicates (prompts/near.py)."""

    def begin(self, batch: Sequence[Text]) -> None: ...

    def place(self, index: int, ref: Ref) -> tuple[Ref, float] | None: ...


class Stream:
    """A shard's candidates in the order to draw in, for all who draw from it; read only as they are asked for."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._left = iter(candidates)
        self._back: list[Candidate] = []

    def take(self, count: int) -> list[Candidate]:
        """The next ones; fewer than `count` at the end."""
        found, self._back = self._back[:count], self._back[count:]
        return found + list(islice(self._left, count - len(found)))

    def put_back(self, unused: Sequence[Candidate]) -> None:
        """Those that were taken last are the next again."""
        self._back = [*unused, *self._back]


@dataclass
class Drawn:
    """What one source gave, and what was dropped for it, each in the order drawn."""

    refs: list[Ref] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)


def quotas(takes: Sequence[Take], total: int | None) -> list[Take]:
    """Prompts wanted of each source once `total` is applied.

    A total below the sum of numeric takes scales them down by largest remainder (ties: the earlier source).
    With any `all` among them a total caps in source order instead, which `draw` does.
    """
    numeric = [take for take in takes if take != "all"]
    if total is None or len(numeric) < len(takes) or total >= sum(numeric):
        return list(takes)
    asked = sum(numeric)
    shares = [take * total // asked for take in numeric]
    remainders = [take * total % asked for take in numeric]
    by_remainder = sorted(range(len(numeric)), key=lambda index: (-remainders[index], index))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return list(shares)


def order_key(seed: int, key: str) -> bytes:
    """Sorts prompts into a seeded order that does not depend on where a prompt stood."""
    return hashlib.blake2b(f"{seed} {key}".encode(), digest_size=16).digest()


class _Taken:
    """The prompts taken so far: whatever repeats one of them is dropped."""

    def __init__(self, near: Near | None) -> None:
        self._by_key: dict[str, Ref] = {}
        self._near = near

    def sift(self, candidates: Sequence[Candidate]) -> Iterator[Ref | Drop]:
        """For each candidate, in order: it is taken, or this is why not."""
        if self._near is not None:
            # All that may have to be compared; what repeats another of the same batch is passed over below.
            compared = [each for each in candidates if each.drop is None and each.key not in self._by_key]
            self._near.begin([each.text for each in compared if each.text is not None])
            index = {each.ref: number for number, each in enumerate(compared)}
        for each in candidates:
            if each.drop is not None:
                yield each.drop
            elif (first := self._by_key.get(each.key)) is not None:
                yield Drop(each.ref, DUPLICATE, first, "")
            elif self._near is not None and (near := self._near.place(index[each.ref], each.ref)) is not None:
                yield Drop(each.ref, NEAR_DUPLICATE, near[0], f"Jaccard {near[1]:.3f}")
            else:
                self._by_key[each.key] = each.ref
                yield each.ref


def draw(
    sources: Sequence[Stream],
    substitutes: Sequence[Iterable[Stream]],
    takes: Sequence[Take],
    total: int | None,
    fill: Sequence[Stream] = (),
    near: Near | None = None,
) -> tuple[list[Drawn], list[Drawn]]:
    """Fill the sources in order: each draws candidates that repeat nothing taken so far, until its quota is met.

    `sources[i]` gives source i's own candidates, `substitutes[i]` those of its stand-ins, which come after the own ones
    of all sources, since a stand-in may be another source, and so its stream. None is begun that is not needed. A
    candidate repeats another if its key is the same, or `near` says so, and only a taken one can drop another. Where a
    source and its substitutes fall short of a scaled-down quota, the others give more, in order, up to their own take.
    What then is missing of the total is drawn from `fill`, in order. Returns what came of sources and of fill.
    """
    taken = _Taken(near)
    room = float("inf") if total is None else float(total)

    def top_up(result: Drawn, stream: Stream, most: float) -> None:
        nonlocal room
        most = min(most, len(result.refs) + room)
        before = len(result.refs)
        while len(result.refs) < most:
            batch = stream.take(int(min(max(most - len(result.refs), AT_LEAST), AT_ONCE)))
            if not batch:
                break
            done = len(result.refs) + len(result.drops)
            for found in taken.sift(batch):
                if isinstance(found, Drop):
                    result.drops.append(found)
                    continue
                result.refs.append(found)
                if len(result.refs) == most:
                    break
            stream.put_back(batch[len(result.refs) + len(result.drops) - done :])
        room -= len(result.refs) - before

    drawn = [Drawn() for _ in sources]
    for limits in (quotas(takes, total), list(takes)):
        for streams in ([(own,) for own in sources], substitutes):
            for result, each, limit in zip(drawn, streams, limits, strict=True):
                for stream in each:
                    top_up(result, stream, float("inf") if limit == "all" else float(limit))
    filled = [Drawn() for _ in fill]
    for result, stream in zip(filled, fill if total is not None else (), strict=total is not None):
        top_up(result, stream, float("inf"))
    return drawn, filled


def spread(count: int, chunks: int) -> list[int]:
    """Sizes of `chunks` chunks over `count` prompts: even, the larger ones first; some are empty if need be."""
    return [count // chunks + (1 if index < count % chunks else 0) for index in range(chunks)]

"""The mix as asked: how many prompts each source gives, and which ones. Pure arithmetic and draws, no files."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Take = int | Literal["all"]


class Ref(NamedTuple):
    """A prompt: its row among the candidates of a shard."""

    shard: str
    row: int


Candidate = tuple[Ref, Sequence[str]]  # and the keys that make two of them the same


@dataclass
class Drawn:
    """What one source gave, in the order drawn, and how many candidates repeated what was taken before."""

    refs: list[Ref] = field(default_factory=list)
    duplicates: int = 0


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


def order_key(seed: int, prompt_id: str) -> bytes:
    """Sorts prompts into a seeded order that does not depend on where a prompt stood."""
    return hashlib.blake2b(f"{seed} {prompt_id}".encode(), digest_size=16).digest()


def draw(
    sources: Sequence[Iterable[Candidate]],
    substitutes: Sequence[Iterable[Candidate]],
    takes: Sequence[Take],
    total: int | None,
    fill: Sequence[Iterable[Candidate]] = (),
) -> tuple[list[Drawn], list[Drawn]]:
    """Fill the sources in order: each draws candidates that repeat nothing taken so far, until its quota is met.

    `sources[i]` gives source i's own candidates in the order to draw in, `substitutes[i]` those of its stand-ins, which
    come after the own ones of all sources, since a stand-in may be another source. None is asked for that is not
    needed. A candidate repeats another if any of its keys is the same, and only a taken one can drop another. Where a
    source and its substitutes fall short of a scaled-down quota, the others give more, in order, up to their own take.
    What then is missing of the total is drawn from `fill`, in order. Returns what came of sources and of fill.
    """
    taken: set[str] = set()
    room = float("inf") if total is None else float(total)

    def top_up(result: Drawn, candidates: Iterator[Candidate], most: float) -> None:
        nonlocal room
        most = min(most, len(result.refs) + room)
        before = len(result.refs)
        while len(result.refs) < most:
            candidate = next(candidates, None)
            if candidate is None:
                break
            ref, keys = candidate
            if any(key in taken for key in keys):
                result.duplicates += 1
                continue
            taken.update(keys)
            result.refs.append(ref)
        room -= len(result.refs) - before

    drawn = [Drawn() for _ in sources]
    own, stand_ins = [iter(found) for found in sources], [iter(found) for found in substitutes]
    for limits in (quotas(takes, total), list(takes)):
        for waiting in (own, stand_ins):
            for result, candidates, limit in zip(drawn, waiting, limits, strict=True):
                top_up(result, candidates, float("inf") if limit == "all" else float(limit))
    filled = [Drawn() for _ in fill]
    for result, filling in zip(filled, fill if total is not None else (), strict=total is not None):
        top_up(result, iter(filling), float("inf"))
    return drawn, filled


def spread(count: int, chunks: int) -> list[int]:
    """Sizes of `chunks` chunks over `count` prompts: even, the larger ones first; some are empty if need be."""
    return [count // chunks + (1 if index < count % chunks else 0) for index in range(chunks)]

"""The mix as asked: how many prompts each source gives, and which ones. Pure arithmetic and draws, no files."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Take = int | Literal["all"]


@dataclass
class Drawn:
    """What one source gave: `rows` are indices into its candidates, in the order drawn."""

    rows: list[int] = field(default_factory=list)
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


def draw(sources: Sequence[Iterable[Sequence[str]]], takes: Sequence[Take], total: int | None) -> list[Drawn]:
    """Fill the sources in order: each draws candidates that repeat nothing taken so far, until its quota is met.

    `sources[i]` lists the keys of each candidate of source i, in the order to draw in; a candidate repeats another
    if any key is the same. Only a taken candidate can drop another. Where a source falls short of a scaled-down
    quota, the others give more, in order, up to their own take.
    """
    taken: set[str] = set()
    drawn = [Drawn() for _ in sources]
    waiting = [iter(enumerate(candidates)) for candidates in sources]

    def fill(index: int, most: float) -> None:
        while len(drawn[index].rows) < most:
            candidate = next(waiting[index], None)
            if candidate is None:
                return
            row, keys = candidate
            if any(key in taken for key in keys):
                drawn[index].duplicates += 1
                continue
            taken.update(keys)
            drawn[index].rows.append(row)

    room = float("inf") if total is None else float(total)
    for limits in (quotas(takes, total), list(takes)):
        for index, limit in enumerate(limits):
            left = room - sum(len(item.rows) for item in drawn)
            most = float("inf") if limit == "all" else float(limit)
            fill(index, min(most, len(drawn[index].rows) + left))
    return drawn


def spread(count: int, chunks: int) -> list[int]:
    """Sizes of `chunks` chunks over `count` prompts: even, the larger ones first; some are empty if need be."""
    return [count // chunks + (1 if index < count % chunks else 0) for index in range(chunks)]

"""The mix's arithmetic: quotas, order, determinism, and the total met whenever it can be."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.prompts import mix as mixing
from workflow_scripts.prompts.mix import (
    DUPLICATE,
    NEAR_DUPLICATE,
    Candidate,
    Drawn,
    Drop,
    Ref,
    Stream,
    Text,
    draw,
    order_key,
    quotas,
    spread,
)

TAKES = st.lists(st.integers(1, 50) | st.just("all"), min_size=1, max_size=5)


def test_quotas_scale_down_by_largest_remainder() -> None:
    assert quotas([99, 40, 29, 24], 100) == [52, 21, 15, 12]  # exact: 51.56, 20.83, 15.10, 12.5
    assert quotas([1, 1, 1], 2) == [1, 1, 0]
    assert quotas([10, 20], None) == [10, 20]
    assert quotas([10, 20], 40) == [10, 20]
    assert quotas([10, "all"], 5) == [10, "all"]


@given(takes=st.lists(st.integers(1, 10**6), min_size=1, max_size=8), total=st.integers(1, 10**6))
def test_quotas_add_up_and_none_exceeds_its_take(takes: list[int], total: int) -> None:
    result = [int(quota) for quota in quotas(takes, total)]
    assert sum(result) == min(total, sum(takes))
    assert all(0 <= quota <= take for quota, take in zip(result, takes, strict=True))


def candidates(shard: str, keys: Iterable[str]) -> Stream:
    return Stream(Candidate(Ref(shard, row), key) for row, key in enumerate(keys))


NONE: list[list[Stream]] = [[], []]  # two sources' substitutes
KEYS = st.lists(st.integers(0, 60).map(str), max_size=40)


class Neighbours:
    """Takes whole numbers for near that differ by one, as a stand-in for texts."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, Ref]] = []
        self.batch: Sequence[Text] = ()

    def begin(self, batch: Sequence[Text]) -> None:
        self.batch = batch

    def place(self, index: int, ref: Ref) -> tuple[Ref, float] | None:
        number = int(self.batch[index].turns)
        for other, first in self.taken:
            if abs(other - number) == 1:
                return first, 0.5
        self.taken.append((number, ref))
        return None


@st.composite
def mixes(draw_: st.DrawFn) -> dict[str, Any]:
    """Shards, and who draws from which: of the candidates some are dropped by a filter, and shards may be shared."""
    takes = draw_(TAKES)

    def shard(name: str) -> list[Candidate]:
        found = []
        for row, (key, filtered) in enumerate(
            draw_(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40))
        ):
            ref = Ref(name, row)
            drop = Drop(ref, "excluded", "an earlier run", "") if filtered and key % 3 == 0 else None
            found.append(Candidate(ref, str(key), Text(str(key), ""), drop))
        return found

    sources = [str(index) for index in range(len(takes))]
    names = st.lists(st.sampled_from([*sources, "more", "others", "rest"]), max_size=3, unique=True)
    return {
        "shards": {name: shard(name) for name in [*sources, "more", "others", "rest"]},
        "sources": sources,
        "substitutes": [draw_(names) for _ in sources],
        "takes": takes,
        "total": draw_(st.none() | st.integers(1, 120)),
        "fill": draw_(names),
    }


def drawn_of(mix: dict[str, Any], *, near: bool) -> tuple[list[Drawn], list[Drawn]]:
    streams = {name: Stream(found) for name, found in mix["shards"].items()}
    return draw(
        [streams[name] for name in mix["sources"]],
        [[streams[name] for name in names] for names in mix["substitutes"]],
        mix["takes"],
        mix["total"],
        [streams[name] for name in mix["fill"]],
        Neighbours() if near else None,
    )


@given(mix=mixes(), near=st.booleans())
def test_what_is_drawn_does_not_depend_on_how_many_are_asked_for_at_once(mix: dict[str, Any], near: bool) -> None:
    expected = drawn_of(mix, near=near)
    for least, most in ((1, 1), (1, 7), (7, 7)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mixing, "AT_LEAST", least)
            patch.setattr(mixing, "AT_ONCE", most)
            assert drawn_of(mix, near=near) == expected


def test_where_few_are_wanted_many_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that lacks one prompt, and holds hundreds that are near."""
    compared = []

    class Counting(Neighbours):
        def begin(self, batch: Sequence[Text]) -> None:
            compared.append(len(batch))
            super().begin(batch)

    keys = ["0", *["1"] * 600, "5", "7"]
    stream = Stream(Candidate(Ref("a", row), f"{key} {row}", Text(key, "")) for row, key in enumerate(keys))
    drawn, _ = draw([stream], [[]], [2], None, near=Counting())
    assert [ref.row for ref in drawn[0].refs] == [0, 601] and len(drawn[0].drops) == 600
    assert compared == [256, 256, 91]
    assert [each.ref.row for each in stream.take(9)] == [602]


@given(mix=mixes(), near=st.booleans())
def test_every_candidate_is_taken_dropped_with_its_reason_or_not_reached(mix: dict[str, Any], near: bool) -> None:
    drawn, filled = drawn_of(mix, near=near)
    assert drawn_of(mix, near=near) == (drawn, filled)
    shards = list(mix["shards"].values())
    candidates = {each.ref: each for shard in shards for each in shard}
    taken = [ref for item in [*drawn, *filled] for ref in item.refs]
    drops = [drop for item in [*drawn, *filled] for drop in item.drops]
    reached = Counter([*taken, *(drop.ref for drop in drops)])
    assert set(reached.values()) <= {1}
    for shard in shards:  # from the first on, none passed over
        assert {each.ref for each in shard if each.ref in reached} == {
            each.ref for each in shard[: sum(each.ref in reached for each in shard)]
        }
    for ref, reason, repeats, detail in drops:
        if reason == "excluded":
            assert candidates[ref].drop == Drop(ref, reason, repeats, detail)
            continue
        assert isinstance(repeats, Ref) and repeats in taken
        key, other = candidates[ref].key, candidates[repeats].key
        assert (key == other) if reason == DUPLICATE else (reason == NEAR_DUPLICATE and abs(int(key) - int(other)) == 1)
    keys = [candidates[ref].key for ref in taken]
    assert len(set(keys)) == len(keys) and not any(candidates[ref].drop for ref in taken)
    assert not near or all(abs(int(one) - int(other)) != 1 for one in keys for other in keys)


@given(mix=mixes(), near=st.booleans())
def test_takes_and_total_are_met_whenever_they_can_be(mix: dict[str, Any], near: bool) -> None:
    drawn, filled = drawn_of(mix, near=near)
    count = sum(len(item.refs) for item in [*drawn, *filled])
    reached = {ref for item in [*drawn, *filled] for ref in [*item.refs, *(drop.ref for drop in item.drops)]}
    total = mix["total"]
    assert total is None or count <= total
    full = total is not None and count == total
    shards = mix["shards"]
    for item, take, own, stand_ins in zip(drawn, mix["takes"], mix["sources"], mix["substitutes"], strict=True):
        assert take == "all" or len(item.refs) <= take
        # One that falls short has looked at all there is for it.
        looked_at = [each.ref for name in (own, *stand_ins) for each in shards[name]]
        assert full or len(item.refs) == take or reached.issuperset(looked_at)
    if total is None:
        assert not any(item.refs or item.drops for item in filled)
    elif not full:
        assert reached.issuperset(each.ref for name in mix["fill"] for each in shards[name])


def test_a_short_source_is_made_up_for_by_the_others_takes() -> None:
    sources = [candidates("a", [f"a{i}" for i in range(30)]), candidates("b", [f"b{i}" for i in range(100)])]
    assert [len(item.refs) for item in draw(sources, NONE, [100, 100], 100)[0]] == [30, 70]


def test_a_source_that_stands_in_for_another_first_gives_what_it_is_asked_itself() -> None:
    later = candidates("later", "123456789")
    drawn, _ = draw([Stream(()), later], [[later], ()], ["all", 5], None)
    assert [len(item.refs) for item in drawn] == [4, 5]
    later = candidates("later", "123456789")
    drawn, _ = draw([candidates("a", "x"), later], [[later], ()], [6, "all"], 20)
    assert [len(item.refs) for item in drawn] == [1, 9]


def test_only_a_taken_prompt_drops_another() -> None:
    drawn, _ = draw([candidates("a", "xy"), candidates("b", "yx")], NONE, [1, "all"], None)
    assert [[ref.row for ref in item.refs] for item in drawn] == [[0], [0]]
    assert [item.drops for item in drawn] == [[], [Drop(Ref("b", 1), DUPLICATE, Ref("a", 0), "")]]


def test_no_stand_in_is_read_that_is_not_needed() -> None:
    read: list[str] = []

    def stand_in(shard: str, count: int) -> Stream:
        def rows() -> Iterator[Candidate]:
            read.append(shard)
            yield from (Candidate(Ref(shard, row), f"{shard} {row}") for row in range(count))

        return Stream(rows())

    own = [candidates("a", "12"), candidates("b", "3456")]
    substitutes = [[stand_in("first", 2), stand_in("second", 9)], [stand_in("third", 9)]]
    drawn, filled = draw(own, substitutes, [5, 4], 12, [stand_in("fill", 9), stand_in("more", 9)])
    assert [ref.shard for ref in drawn[0].refs] == ["a", "a", "first", "first", "second"]
    assert [ref.shard for ref in drawn[1].refs] == ["b"] * 4
    assert [len(item.refs) for item in filled] == [3, 0]
    assert read == ["first", "second", "fill"]


@given(count=st.integers(0, 1000), chunks=st.integers(1, 50))
def test_spread_is_even_and_whole(count: int, chunks: int) -> None:
    sizes = spread(count, chunks)
    assert sum(sizes) == count and len(sizes) == chunks and max(sizes) - min(sizes) <= 1


def test_the_order_depends_on_seed_and_prompt_alone() -> None:
    ids = [f"{number:064x}" for number in range(50)]
    by_0, by_1 = (sorted(ids, key=lambda item: order_key(seed, item)) for seed in (0, 1))
    assert by_0 != by_1
    assert sorted(reversed(ids), key=lambda item: order_key(0, item)) == by_0

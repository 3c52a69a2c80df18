"""The mix's arithmetic: quotas, order, determinism, and the total met whenever it can be."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.prompts.mix import Candidate, Ref, Take, draw, order_key, quotas, spread

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


def candidates(shard: str, keys: Iterable[str]) -> list[Candidate]:
    """Candidates with one key each."""
    return [(Ref(shard, row), (key,)) for row, key in enumerate(keys)]


NONE: list[list[Candidate]] = [[], []]  # two sources' substitutes
KEYS = st.lists(st.integers(0, 60).map(str), max_size=40)


@given(takes=TAKES, total=st.none() | st.integers(1, 120), fills=st.lists(KEYS, max_size=2), data=st.data())
def test_a_draw(takes: list[Take], total: int | None, fills: list[list[str]], data: st.DataObject) -> None:
    keys = [data.draw(KEYS) for _ in takes]
    sources = [candidates(str(index), found) for index, found in enumerate(keys)]
    fill = [candidates(f"fill {index}", found) for index, found in enumerate(fills)]
    stand_ins = [candidates(f"for {index}", data.draw(KEYS)) for index in range(len(takes))]
    drawn, filled = draw(sources, stand_ins, takes, total, fill)
    assert draw(sources, stand_ins, takes, total, fill) == (drawn, filled)
    by_ref = dict(candidate for source in [*sources, *stand_ins, *fill] for candidate in source)
    taken = [by_ref[ref] for item in [*drawn, *filled] for ref in item.refs]
    assert len(set(taken)) == len(taken)
    for item, take, source, stand_in in zip(drawn, takes, sources, stand_ins, strict=True):
        for shard in (source, stand_in):
            of_shard = [ref for ref in item.refs if ref in dict(shard)]
            assert of_shard == sorted(set(of_shard))
        assert len(item.refs) + item.duplicates <= len(source) + len(stand_in)
        assert take == "all" or len(item.refs) <= take
    distinct = {key for shard in [*sources, *stand_ins] for _, found in shard for key in found}
    if total is None:
        assert [item.refs for item in filled] == [[] for _ in fill]
        assert len(taken) == len(distinct) or any(take != "all" for take in takes)
    elif fill or all(take == "all" for take in takes):
        more = {key for found in fills for key in found}
        assert min(total, len(more)) <= len(taken) <= total
        if all(take == "all" for take in takes):
            assert len(taken) == min(total, len(distinct | more))


def test_a_short_source_is_made_up_for_by_the_others_takes() -> None:
    sources = [candidates("a", [f"a{i}" for i in range(30)]), candidates("b", [f"b{i}" for i in range(100)])]
    assert [len(item.refs) for item in draw(sources, NONE, [100, 100], 100)[0]] == [30, 70]


def test_a_source_that_stands_in_for_another_first_gives_what_it_is_asked_itself() -> None:
    later = iter(candidates("later", "123456789"))
    drawn, _ = draw([[], later], [later, ()], ["all", 5], None)
    assert [len(item.refs) for item in drawn] == [4, 5]
    later = iter(candidates("later", "123456789"))
    drawn, _ = draw([candidates("a", "x"), later], [later, ()], [6, "all"], 20)
    assert [len(item.refs) for item in drawn] == [1, 9]


def test_only_a_taken_prompt_drops_another() -> None:
    drawn, _ = draw([candidates("a", "xy"), candidates("b", "yx")], NONE, [1, "all"], None)
    assert [[ref.row for ref in item.refs] for item in drawn] == [[0], [0]]
    assert [item.duplicates for item in drawn] == [0, 1]


def test_a_stand_in_is_asked_for_nothing_that_is_not_needed() -> None:
    asked: list[str] = []

    def stand_in(shard: str, count: int) -> Iterator[Candidate]:
        for row in range(count):
            asked.append(shard)
            yield Ref(shard, row), (f"{shard} {row}",)

    own = [candidates("a", "12"), candidates("b", "3456")]
    substitutes = [chain(stand_in("first", 2), stand_in("second", 9)), stand_in("third", 9)]
    drawn, filled = draw(own, substitutes, [5, 4], 12, [stand_in("fill", 9), stand_in("more", 9)])
    assert [ref.shard for ref in drawn[0].refs] == ["a", "a", "first", "first", "second"]
    assert [ref.shard for ref in drawn[1].refs] == ["b"] * 4
    assert [len(item.refs) for item in filled] == [3, 0]
    assert Counter(asked) == {"first": 2, "second": 1, "fill": 3}


@given(count=st.integers(0, 1000), chunks=st.integers(1, 50))
def test_spread_is_even_and_whole(count: int, chunks: int) -> None:
    sizes = spread(count, chunks)
    assert sum(sizes) == count and len(sizes) == chunks and max(sizes) - min(sizes) <= 1


def test_the_order_depends_on_seed_and_prompt_alone() -> None:
    ids = [f"{number:064x}" for number in range(50)]
    by_0, by_1 = (sorted(ids, key=lambda item: order_key(seed, item)) for seed in (0, 1))
    assert by_0 != by_1
    assert sorted(reversed(ids), key=lambda item: order_key(0, item)) == by_0

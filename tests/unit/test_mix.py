"""The mix's arithmetic: quotas, order, determinism, and the total met whenever it can be."""

from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.prompts.mix import Take, draw, order_key, quotas, spread

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


@given(takes=TAKES, total=st.none() | st.integers(1, 120), data=st.data())
def test_a_draw(takes: list[Take], total: int | None, data: st.DataObject) -> None:
    keys = st.tuples(st.integers(0, 60).map(str))
    sources = [data.draw(st.lists(keys, max_size=40)) for _ in takes]
    drawn = draw(sources, takes, total)
    assert [item.rows for item in draw(sources, takes, total)] == [item.rows for item in drawn]
    taken = [sources[index][row] for index, item in enumerate(drawn) for row in item.rows]
    assert len(set(taken)) == len(taken)
    for item, take, candidates in zip(drawn, takes, sources, strict=True):
        assert item.rows == sorted(set(item.rows))
        assert len(item.rows) + item.duplicates <= len(candidates)
        assert take == "all" or len(item.rows) <= take
    assert total is None or len(taken) <= total
    if all(take == "all" for take in takes):
        distinct = {key for candidates in sources for key in candidates}
        assert len(taken) == (len(distinct) if total is None else min(total, len(distinct)))


def test_a_short_source_is_made_up_for_by_the_others_takes() -> None:
    sources = [[(f"a{i}",) for i in range(30)], [(f"b{i}",) for i in range(100)]]
    assert [len(item.rows) for item in draw(sources, [100, 100], 100)] == [30, 70]


def test_only_a_taken_prompt_drops_another() -> None:
    drawn = draw([[("x",), ("y",)], [("y",), ("x",)]], [1, "all"], None)
    assert [item.rows for item in drawn] == [[0], [0]]
    assert [item.duplicates for item in drawn] == [0, 1]


@given(count=st.integers(0, 1000), chunks=st.integers(1, 50))
def test_spread_is_even_and_whole(count: int, chunks: int) -> None:
    sizes = spread(count, chunks)
    assert sum(sizes) == count and len(sizes) == chunks and max(sizes) - min(sizes) <= 1


def test_the_order_depends_on_seed_and_prompt_alone() -> None:
    ids = [f"{number:064x}" for number in range(50)]
    by_0, by_1 = (sorted(ids, key=lambda item: order_key(seed, item)) for seed in (0, 1))
    assert by_0 != by_1
    assert sorted(reversed(ids), key=lambda item: order_key(0, item)) == by_0

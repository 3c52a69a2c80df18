"""Rows against a plain restatement of what they must be, over any turns and any settings."""

from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.training_cases import VOCABULARY, completion, turn
from workflow_scripts.config import Training
from workflow_scripts.config.outputs import LONGER, Longer
from workflow_scripts.records import TurnClass
from workflow_scripts.training import windows
from workflow_scripts.training.rows import Rows
from workflow_scripts.training.windows import WINDOWS, Costs, cut, supervised

CLASSES = [kind for kind in get_args(TurnClass) if kind != "aborted"]


@st.composite
def turns(draw: st.DrawFn) -> dict[str, Any]:
    """Ids that go up by one, so that no two stretches of them are equal; drawn lists would mostly be short."""
    kind = draw(st.sampled_from(CLASSES))
    first, prompt = draw(st.integers(0, VOCABULARY - 80)), draw(st.integers(1, 40))
    response = draw(st.integers(0 if kind == "empty" else 1, 40))
    ids = list(range(first, first + prompt + response))
    return turn(ids[:prompt], ids[prompt:], kind)


answers = st.builds(
    lambda name, source, made: completion(name, *made, source=source),
    st.text("ab", max_size=3),
    st.sampled_from("ab"),
    st.lists(turns(), min_size=1, max_size=4),
)
settings = st.builds(
    Training,
    keep=st.sampled_from([CLASSES, CLASSES[::2], CLASSES[1::2], []]),
    min_supervised_tokens=st.sampled_from([1, 5, 20]),
    max_tokens=st.integers(1, 60),
    longer=st.sampled_from(LONGER),
    source_rows=st.dictionaries(st.sampled_from("ab"), st.integers(1, 3)),
)


@given(settings, st.lists(answers, max_size=8))
def test_supervised_tokens_in_are_kept_or_dropped_for_a_reason(training: Training, made: list[dict[str, Any]]) -> None:
    rows = Rows(training, VOCABULARY, "Make it again")
    kept = [(answered, row) for answered in made for row in rows.of(answered)]
    report = rows.account.report()
    every = [turn for answered in made for turn in answered["turns"]]
    assert report["turns"] == len(every) == len(kept) + sum(report["dropped"].values())
    tokens = sum(len(turn["response_token_ids"]) for turn in every)
    assert report["supervised_tokens"] == sum(int(row.mask.sum()) for _, row in kept)
    assert report["supervised_tokens_in"] == tokens
    assert tokens == report["supervised_tokens"] + sum(report["supervised_tokens_dropped"].values())
    for source, most in training.source_rows.items():
        assert sum(row.source == source for _, row in kept) <= most
    for answered, row in kept:
        turn = answered["turns"][row.turn]
        prompt, response = turn["prompt_token_ids"], turn["response_token_ids"]
        whole, ids = prompt + response, row.ids.tolist()
        assert turn["class"] == row.kind and row.kind in training.keep
        assert len(ids) == len(row.mask) == min(len(whole), training.max_tokens)
        assert set(row.mask.tolist()) <= {0, 1} and row.mask.sum() >= training.min_supervised_tokens
        start = row.prompt and len(prompt) - row.prompt
        assert whole[start : start + len(ids)] == ids  # a stretch of what the server saw and said
        assert row.mask.tolist() == [int(at >= len(prompt)) for at in range(start, start + len(ids))]
        assert start == 0 or training.longer == "supervised"


CUT = {
    "right": ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1]),
    "supervised": ([4, 5, 6, 7, 8, 9], [0, 0, 1, 1, 1, 1]),
    "drop": None,
}


@pytest.mark.parametrize("longer", LONGER)
def test_a_longer_row_is_cut_with_its_mask(longer: Longer) -> None:
    rows = Rows(Training(min_supervised_tokens=1, max_tokens=6, longer=longer), VOCABULARY, "Make it again")
    made = list(rows.of(completion("p", turn([1, 2, 3, 4, 5], [6, 7, 8, 9]))))
    expected = CUT[longer]
    assert [(row.ids.tolist(), row.mask.tolist()) for row in made] == ([] if expected is None else [expected])


@given(st.integers(1, 50), st.integers(1, 50), st.integers(2, 60))
def test_the_cut_for_supervised_tokens_keeps_as_many_as_any(prompt: int, response: int, window: int) -> None:
    kept = {longer: supervised(prompt, *cut(prompt, response, window, longer)) for longer in LONGER}
    assert kept["supervised"] == min(response, window - 1 if prompt + response > window else response)
    assert kept["supervised"] >= kept["right"] >= kept["drop"]
    start, end = cut(prompt, response, window, "supervised")
    assert start < prompt and end - start == min(window, prompt + response)


LOST = ("cut at max_tokens", "cut below min_supervised_tokens", "longer than max_tokens")


@given(st.lists(answers, max_size=8), st.integers(1, 20), st.sampled_from(LONGER), st.integers(1, 90))
def test_windows_tell_what_an_export_with_another_would_lose(
    made: list[dict[str, Any]], least: int, longer: Longer, window: int
) -> None:
    def report(most: int) -> tuple[dict[str, int], dict[str, Any]]:
        rows = Rows(Training(min_supervised_tokens=least, longer=longer, max_tokens=most), VOCABULARY, "Make it again")
        assert sum(1 for answered in made for _ in rows.of(answered)) == rows.account.rows_kept
        return rows.account.report()["supervised_tokens_dropped"], rows.costs.report()[0]

    with patch.object(windows, "WINDOWS", (20,)):
        _, told = report(window)
        lost, _ = report(20)
    assert told["lost"][longer] == sum(lost.get(reason, 0) for reason in LOST)


def test_a_sources_rows_beyond_its_cap_cost_no_window_anything() -> None:
    rows = Rows(Training(source_rows={"a": 1}), VOCABULARY, "Make it again")
    made = [completion(name, turn([1], [2] * 3000)) for name in "pqr"]
    assert [row.prompt_id for answered in made for row in rows.of(answered)] == ["p"]
    assert rows.account.report()["dropped"] == {"over source_rows": 2}
    told = rows.costs.report()[0]
    assert (told["window"], told["longer_rows"], told["lost"]["right"]) == (2048, 1, 3001 - 2048)


def test_windows_tell_what_they_would_cost() -> None:
    costs = Costs(least=1)
    for prompt, response in ((48, 2000), (1000, 500), (2000, 1000), (10_000, 8_000)):  # the first fits exactly
        costs.add(prompt, response)
    report = {told["window"]: told for told in costs.report()}
    assert tuple(report) == WINDOWS
    assert report[2048]["longer_rows"] == 2
    assert report[2048]["lost"] == {"right": 952 + 8000, "supervised": 0 + 8000 - 2047, "drop": 9000}
    assert report[16384]["lost"] == {"right": 18_000 - 16_384, "supervised": 0, "drop": 8000}
    assert report[4096]["share"]["drop"] == round(8000 / 11_500, 6)

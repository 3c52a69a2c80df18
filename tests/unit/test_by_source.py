"""Counts and lengths of each source, in a sidecar and summed up over many."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_completions import completed, reply
from workflow_scripts.completions.by_source import BySource
from workflow_scripts.completions.histogram import EDGES, bin_of, middle


@given(st.integers(0, 1 << 26))
def test_a_bin_holds_its_numbers(tokens: int) -> None:
    lower = int(bin_of(tokens))
    above = [edge for edge in EDGES if edge > lower]
    assert lower <= tokens and (not above or tokens < above[0])


def test_bins_are_a_fifth_wide_at_most() -> None:
    assert [edge for edge in EDGES if 90 < edge < 140] == [91, 108, 128]
    assert middle("91") == 99 and middle("0") == 0 and middle("1") == 1


def test_counts_add_up() -> None:
    one, both = BySource(), BySource()
    for number in range(3):
        one.add(completed(reply(finish_reason="length" if number else "stop"), number))
    for _ in range(2):
        both.add_counts(one.counts())
    assert one.counts() == {
        "demo": {
            "completions": 3,
            "prompt_tokens": 9,
            "output_tokens": 6,
            "prompt_lengths": {"3": 3},
            "output_lengths": {"complete": {"2": 1}, "cut_in_answer": {"2": 2}},
        }
    }
    assert both.counts()["demo"]["output_lengths"] == {"complete": {"2": 2}, "cut_in_answer": {"2": 4}}
    assert both.counts()["demo"]["prompt_lengths"] == {"3": 6} and both.counts()["demo"]["completions"] == 6

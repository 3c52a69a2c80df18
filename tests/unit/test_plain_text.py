"""Text that can't do anything to who looks at it."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tests.standin.made_run import NASTY
from workflow_scripts.reporting.plain_text import clip, columns, cut, one_line, visible

anything = st.text(st.characters(exclude_categories=[]))


@given(anything)
def test_nothing_that_does_something_is_left(text: str) -> None:
    left = {unicodedata.category(one) for one in visible(text) if one not in "\n\t\u200c\u200d"}
    assert not left & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    visible(text).encode()  # no lone surrogate either


def test_it_is_spelled_out() -> None:
    assert visible("\x1b[31mred\x07\u202e") == "<U+001B>[31mred<U+0007><U+202E>"
    assert visible("one\r\ntwo\rthree") == "one\ntwo<U+000D>three"


def test_languages_and_emoji_stay() -> None:
    text = "שלום مرحبا 漢字 é e\u0301 \U0001f469\u200d\U0001f4bb — “quoted”"
    assert visible(text) == text


@given(anything, st.integers(10, 100))
def test_a_line_fits(text: str, width: int) -> None:
    line = one_line(text, width)
    assert "\n" not in line and columns(line) <= width


def test_wide_characters_take_two_columns() -> None:
    assert columns("漢字") == 4 and columns("e\u0301") == 1
    assert clip("漢字漢字漢字", 10) == "漢字漢..."


def test_what_is_cut_says_so() -> None:
    text = "a" * 600 + "b" * 400
    assert cut(text, 1000) == text
    assert cut(text, 100) == "a" * 75 + "\n[... 900 characters are left out here ...]\n" + "b" * 25
    assert all(len(cut(one, 2000)) < 2100 for one in NASTY)

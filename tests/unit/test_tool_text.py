"""Calls, results and thinking inside text: read where they are whole, left as text where they are not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tool_text import Result, calls, results, split_thinking

NAMES = ["ring", "Ring (twice)", "Oven Data"]


@pytest.mark.parametrize(
    ("content", "found", "rest"),
    [
        ("Nothing to call.", [], "Nothing to call."),
        ("[1, 2]", [], "[1, 2]"),
        ("[unknown(a=1)]", [], "[unknown(a=1)]"),
        ('<tool_call>{"name": "a"}</tool_call>', [{"name": "a"}], ""),
        ("Text\n<tool_call>\n{'name': 'a', 'n': None}\n</tool_call>\nafter", [{"name": "a", "n": None}], "Text\nafter"),
        ('<tool_call>[{"name": "a"}, {"name": "b"}]</tool_call>', [{"name": "a"}, {"name": "b"}], ""),
        ('<functioncall> {"name": "a", "arguments": \'{"b": "it\\\'s"}\'}', [("a", {"b": "it's"})], ""),
        ('so: <functioncall> {"name": "a", "arguments": {"b": 1}}', [("a", {"b": 1})], "so:"),
        ("[ring()]", [("ring", {})], ""),
        (" [ring( ), ring(x=1 , )]\n", [("ring", {}), ("ring", {"x": 1})], ""),
        (
            '[Ring (twice)(a=\'x, "y" )\', b={"c": [1, (2)]}, from=true), Oven Data(q="\\"]")]',
            [("Ring (twice)", {"a": 'x, "y" )', "b": {"c": [1, 2]}, "from": True}), ("Oven Data", {"q": '"]'})],
            "",
        ),
    ],
)
def test_calls(content: str, found: list[Any], rest: str) -> None:
    named = [{"name": one[0], "arguments": one[1]} if isinstance(one, tuple) else one for one in found]
    assert calls(content, NAMES) == (named, rest)


@pytest.mark.parametrize(
    "content",
    [
        "<tool_call>no call</tool_call>",
        '<tool_call>{"name": "a"}',
        '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": ',
        "<tool_call>{'a': {1, 2}}</tool_call>",
        "<functioncall> {}{}",
        '<functioncall> {"name": "a", "arguments": \'{\'}',
        "[ring(",
        "[ring()",
        "[ring() ring()]",
        "[ring(), other()]",
        "[ring()] and more",
        "[ring(1)]",
        "[ring(a=)]",
        "[ring(a=b)]",
        "[ring(1), ring(a=2)]",
    ],
)
def test_calls_that_can_not_be_read(content: str) -> None:
    with pytest.raises(Rejected) as caught:
        calls(content, NAMES)
    assert caught.value.kind == "bad_tool_call"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("plain", [Result(None, "plain")]),
        (
            '<tool_response>\n{"name": "a", "content": 1}\n</tool_response>\n<tool_response>2</tool_response>',
            [Result("a", '{"name": "a", "content": 1}'), Result(None, "2")],
        ),
        (
            "<tool_response>{'name': 'a', 'content': None}</tool_response>",
            [Result("a", "{'name': 'a', 'content': None}")],
        ),
        ('<tool_response>{"name": "Ann"}</tool_response>', [Result(None, '{"name": "Ann"}')]),
        ("see <tool_response>1</tool_response>", [Result(None, "see <tool_response>1</tool_response>")]),
        ("<tool_response>1", [Result(None, "<tool_response>1")]),
        (
            '[{"name": "a", "results": {"x": 1.50}}, {"name": "b", "results": []}]',
            [Result("a", '{"name": "a", "results": {"x": 1.50}}'), Result("b", '{"name": "b", "results": []}')],
        ),
        ('[{"name": "a"}]', [Result(None, '[{"name": "a"}]')]),
        ("[]", [Result(None, "[]")]),
        ("[1, 2", [Result(None, "[1, 2")]),
    ],
)
def test_results(content: str, expected: list[Result]) -> None:
    assert results(content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<think>\na\n\nb\n</think>\n\nc\n", ("a\n\nb", "c\n")),
        ("\n<think></think>c", ("", "c")),
        ("<think>a</think>", ("a", "")),
        ("<think>a", ("", "<think>a")),
        ("b <think>a</think>", ("", "b <think>a</think>")),
        ("a</think>b", ("", "a</think>b")),
    ],
)
def test_split_thinking(content: str, expected: tuple[str, str]) -> None:
    assert split_thinking(content) == expected


markup = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<functioncall>",
     "<think>", "</think>", "ring", "(", ")", "[", "]", "{", "}", "=", ",", '"', "'", "\\", "name", ":", "1", " ", "\n",
     '{"name": "a", "arguments": {}}']
)  # fmt: skip
texts = st.lists(markup | st.text(max_size=3), max_size=12).map("".join)


@given(text=texts)
def test_no_text_raises_anything_but_a_reject(text: str) -> None:
    try:
        calls(text, NAMES)
    except Rejected as why:
        assert why.kind == "bad_tool_call"
    assert all(isinstance(result.content, str) for result in results(text))
    thinking, rest = split_thinking(text)
    assert thinking in text and rest in text

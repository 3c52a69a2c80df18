"""Calls, results, thinking and declarations inside text: read where they are whole, left as text where they are not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tool_declarations import declared
from workflow_scripts.sources.tool_text import Result, calls, results, split_thinking
from workflow_scripts.sources.tools import parse_loosely, read_tools

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


BELL = {"type": "function", "function": {"name": "bell", "parameters": {"type": "object", "properties": {}}}}
BARE = {"name": "bell", "parameters": {}}
QWEN = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function call, return a json object "
    "with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


@pytest.mark.parametrize(
    ("system", "count", "rest"),
    [
        (QWEN.format(json.dumps(BELL)), 1, ""),
        ("You are Kim.\n\n" + QWEN.format(json.dumps(BELL) + "\n" + json.dumps(BELL)), 2, "You are Kim."),
        (QWEN.format(str(BELL) + "\n" + str(BELL)), 2, ""),
        ("Be <b>kind</b>. <tools>[]</tools> Bye.", 0, "Be <b>kind</b>.  Bye."),
        (f"<tools>{json.dumps([BARE])}</tools>Use the tools well.", 1, "Use the tools well."),
        ("with access to the following functions. Use them if required -\n", 0, ""),
        (
            f"Kim, with access to the following functions. Use them if required -\n{json.dumps(BARE, indent=4)}\n\n"
            f"{json.dumps(BARE)}\n\nSpeak [up].",
            2,
            "Kim, \n\nSpeak [up].",
        ),
        (
            f"Here is a list of functions in JSON format that you can invoke:\n{json.dumps([BARE])}. {{more}}",
            1,
            "{more}",
        ),
    ],
)
def test_declared(system: str, count: int, rest: str) -> None:
    found = declared(system)
    assert found is not None
    assert (read_tools(found.tools()), found.rest) == ([BELL] * count or None, rest)


@pytest.mark.parametrize(
    "system",
    [
        "",
        "Write <tools> </tools> around tools.",
        "<tools>a hammer</tools>",
        "<tools>[",
        "You are a function calling AI model.",
        "with access to the following functions. Use them if required - none of them",
    ],
)
def test_nothing_declared(system: str) -> None:
    assert declared(system) is None


@pytest.mark.parametrize("body", ["[", "{'a': ", "[]]", "{}\n{"])
def test_a_declaration_that_can_not_be_read(body: str) -> None:
    found = declared(f"<tools>{body}</tools>")
    assert found is not None
    with pytest.raises(Rejected, match="bad_tools"):
        found.tools()
    with pytest.raises(Rejected, match="bad_tools"):
        declared('Use them if required - with access to the following functions. Use them if required -\n{"a": ')


def test_tools_as_python_functions() -> None:
    source = (
        'def cut(what: str, /, parts: List[int] = [], *, how: "Knife", fast: bool = True):\n    """Cut.\n\n    It."""\n'
    )
    properties = {
        "what": {"type": "string"},
        "parts": {"type": "array", "items": {"type": "integer"}},
        "how": {},
        "fast": {"type": "boolean"},
    }
    parameters = {"type": "object", "properties": properties, "required": ["what", "how"]}
    function = {"name": "cut", "description": "Cut.\n\nIt.", "parameters": parameters}
    assert read_tools([source, json.dumps(BARE)]) == [{"type": "function", "function": function}, BELL]
    for text in ("def cut(", "def \x00", "tool", "class A: ..."):
        with pytest.raises(Rejected, match="bad_tools"):
            read_tools([text])


@pytest.mark.parametrize("text", ["{1: 2}", "(1, 'a')", "{'a': 2**70}", "'\\ud800'", "1e999", "b'x'", "(" * 500, "f()"])
def test_literals_are_json_or_rejected(text: str) -> None:
    try:
        value = parse_loosely(text, "bad")
    except Rejected as why:
        assert why.kind == "bad"
        return
    assert json.loads(json.dumps(value)) == value


markup = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<functioncall>", "<tools>", "</tools>",
     "<think>", "</think>", "ring", "(", ")", "[", "]", "{", "}", "=", ",", '"', "'", "\\", "name", ":", "1", " ", "\n",
     "Here is a list of functions in JSON format that you can invoke:", '{"name": "a", "arguments": {}}']
)  # fmt: skip
texts = st.lists(markup | st.text(max_size=3), max_size=12).map("".join)


@given(text=texts)
def test_no_text_raises_anything_but_a_reject(text: str) -> None:
    for read in (lambda: calls(text, NAMES), lambda: declared(text)):
        try:
            read()
        except Rejected as why:
            assert why.kind in ("bad_tool_call", "bad_tools")
    assert all(isinstance(result.content, str) for result in results(text))
    thinking, rest = split_thinking(text)
    assert thinking in text and rest in text

"""Tools, calls and results of a row: to the form of the chat API, each once, paired."""

import json
from typing import Any

import pytest

from workflow_scripts.config import Columns, Shape
from workflow_scripts.records import Message
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import Conversation, column_names, converter
from workflow_scripts.sources.tools import parse_loosely, read_tools


def convert(shape: Shape, row: dict[str, Any]) -> Conversation:
    return converter(shape, column_names(shape, Columns()))(row)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


QA = [user("Q"), assistant("A")]
BARE = {"name": "bell", "parameters": {}}
BELL = {"type": "function", "function": {"name": "bell", "parameters": {"type": "object", "properties": {}}}}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_tools_query_answers() -> None:
    tools = [
        {
            "name": "tide",
            "description": "Tide",
            "parameters": {
                "port": {"description": "Port", "type": "str"},
                "type": {"description": "Kind", "type": "int, optional"},
                "days": {"type": "List[int]", "default": []},
                "where": {"type": "Tuple[float, float]"},
                "extra": {"type": "Dict[str, Any]"},
                "key": {"type": "Callable"},
                "flag": {"type": "Optional[bool]"},
            },
        },
        {"name": "lamp", "description": "Lamp", "parameters": {}},
    ]
    answers = [{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "lamp", "arguments": {}}]
    expected_tools = [
        {
            "type": "function",
            "function": {
                "name": "tide",
                "description": "Tide",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "port": {"type": "string", "description": "Port"},
                        "type": {"type": "integer", "description": "Kind"},
                        "days": {"type": "array", "items": {"type": "integer"}, "default": []},
                        "where": {"type": "array"},
                        "extra": {"type": "object"},
                        "key": {},
                        "flag": {"type": "boolean"},
                    },
                    "required": ["port", "where", "extra", "key"],
                },
            },
        },
        {
            "type": "function",
            "function": {"name": "lamp", "description": "Lamp", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    expected = [
        user("Q"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("call_0", "tide", '{"port":"Brest"}'), call("call_1", "lamp", "{}")],
        },
    ]
    for row in (
        {"query": "Q", "tools": tools, "answers": answers},
        {"query": "Q", "tools": json.dumps(tools), "answers": json.dumps(answers)},
    ):
        conversation = convert("tools_query_answers", row)
        assert conversation.messages == expected
        assert conversation.tools == expected_tools
    assert convert("tools_query_answers", {"query": "Q", "tools": "[]", "answers": "[]"}).messages == [user("Q")]


def test_tools_of_the_api_stay_and_bare_schemas_are_wrapped() -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    ready = {"type": "function", "function": function}
    bare = {
        "name": "g",
        "parameters": {"type": "dict", "properties": {"a": {"type": "list", "items": {"type": "int"}}}},
    }
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    conversation = convert("messages", {"messages": QA, "tools": [ready, {"function": function}, bare]})
    assert conversation.tools == [ready, ready, {"type": "function", "function": {"name": "g", "parameters": schema}}]
    nothing: list[Any] = [None, "", "null", "[]", []]
    for none in nothing:
        assert convert("messages", {"messages": QA, "tools": none}).tools is None


def test_calls_and_results_are_paired() -> None:
    turns = [
        user("Q"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": 2**70}}},
                {"name": "g", "arguments": '{"c": 1}'},
                {"function": {"name": "f"}},
            ],
        },
        {"role": "tool", "content": "1", "name": "g"},
        {"role": "tool", "content": "2", "tool_call_id": "x"},
        {"role": "tool", "content": [{"type": "text", "text": "3"}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "", "function_call": {"name": "h", "arguments": ""}},
        {"role": "tool", "content": "5"},
    ]
    assert convert("messages", {"messages": turns}).messages == [
        user("Q"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                call("x", "f", '{"a":1,"b":1180591620717411303424}'),
                call("call_1", "g", '{"c": 1}'),
                call("call_2", "f", "{}"),
            ],
        },
        {"role": "tool", "content": "1", "tool_call_id": "call_1", "name": "g"},
        {"role": "tool", "content": "2", "tool_call_id": "x"},
        {"role": "tool", "content": "3", "tool_call_id": "call_2"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "", "tool_calls": [call("call_3", "h", "{}")]},
        {"role": "tool", "content": "5", "tool_call_id": "call_3"},
    ]


@pytest.mark.parametrize(
    ("turn", "content"),
    [
        ({**assistant("text"), "tool_calls": [{}]}, "text"),
        ({**assistant("text"), "tool_calls": 7}, "text"),
        ({**assistant("text"), "tool_calls_json": "[{"}, "text"),
        ({**assistant("text"), "function_call": {"name": ""}}, "text"),
        ({**assistant(""), "tool_calls": [{"name": "f", "arguments": [1]}]}, ""),
        ({"role": "function_call", "content": "f()"}, "f()"),
        ({"role": "function_call", "content": ""}, ""),
        (assistant("<tool_call>f()</tool_call>"), "<tool_call>f()</tool_call>"),
        (assistant("[f(1)]"), "[f(1)]"),
    ],
)
def test_calls_that_can_not_be_read_lose_no_prompt(turn: dict[str, Any], content: str) -> None:
    rows = [user("Q"), turn, {"role": "tool", "content": "1"}, user("Q2")]
    conversation = convert("messages", {"messages": rows, "tools": [{"name": "f"}]})
    assert conversation.messages == [user("Q"), assistant(content), {"role": "tool", "content": "1"}, user("Q2")]
    assert conversation.malformed_calls == 1


def test_tools_stand_in_a_prompt_once() -> None:
    bare = '{"name": "f"}'
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    declared = f"S <tools>[{bare}]</tools>"
    for row in (
        {"messages": [system(declared), *QA]},
        {"messages": [system(declared), *QA], "tools": "[]"},
        {"messages": [system(declared), *QA], "tools": [bare]},
        {"messages": [system("S <tools>[torn</tools>"), *QA], "tools": [tool]},
        {"messages": QA, "system": declared},
        {"messages": [system(declared), *QA], "system": declared},
    ):
        conversation = convert("messages", row)
        assert (conversation.messages, conversation.tools) == ([system("S"), *QA], [tool])
    conversation = convert("messages", {"messages": [system(f"<tools>[{bare}]</tools>\n"), *QA]})
    assert (conversation.messages, conversation.tools) == (QA, [tool])


def test_calls_inside_calls_inside_json() -> None:
    calls = json.dumps([call("x", "f", '{"a": "\\"b\\""}')])
    turns = [
        user("Q"),
        {**assistant("A"), "tool_calls_json": calls},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]
    assert convert("messages_json_string", {"messages_json": json.dumps(turns)}).messages == [
        user("Q"),
        {**assistant("A"), "tool_calls": [call("x", "f", '{"a": "\\"b\\""}')]},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]


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

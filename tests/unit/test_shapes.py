"""Rows to conversations: the exact messages of every shape, and a reason for every row that is none."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.config import Columns, Shape
from workflow_scripts.records import Message
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import ROLES, USUAL, Conversation, column_names, converter, row_id


def convert(shape: Shape, row: dict[str, Any], **columns: str) -> Conversation:
    return converter(shape, Columns(**columns))(row)


def rejected(shape: Shape, row: dict[str, Any], **columns: str) -> tuple[str, str]:
    with pytest.raises(Rejected) as caught:
        convert(shape, row, **columns)
    return caught.value.kind, caught.value.detail


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


QA = [user("Q"), assistant("A")]


@pytest.mark.parametrize(
    ("shape", "row", "messages"),
    [
        ("prompt_response", {"query": "Q", "response": "A", "type": "x"}, QA),
        ("prompt_response", {"question": "Q", "answer": "A", "system": "ignored"}, QA),
        ("prompt_response", {"instruction": "Q", "output": "A"}, QA),
        ("prompt_response", {"problem": "Q", "solution": "A"}, QA),
        ("prompt_response", {"prompt": " Q\n", "completion": None}, [user(" Q\n")]),
        ("prompt_response", {"prompt": "Q"}, [user("Q")]),
        ("prompt_response", {"prompt": [{"type": "text", "text": "Q"}, {"type": "text", "text": "2"}]}, [user("Q2")]),
        ("prompt_response_system", {"system_prompt": "S", "question": "Q", "response": "A"}, [system("S"), *QA]),
        ("prompt_response_system", {"system_prompt": "", "question": "Q", "response": "A"}, QA),
        ("prompt_response_system", {"system": None, "question": "Q", "response": "A"}, QA),
        ("alpaca", {"instruction": "Q", "input": "", "output": "A"}, QA),
        ("alpaca", {"instruction": "Q", "input": "[3,1]", "output": "A"}, [user("Q\n\n[3,1]"), assistant("A")]),
        ("alpaca", {"instruction": "Q", "output": "A"}, QA),
        ("messages", {"messages": QA}, QA),
        ("messages", {"conversation": QA, "language": "English"}, QA),
        ("messages", {"messages": json.dumps(QA)}, QA),
        ("messages", {"messages": [system(""), *QA]}, QA),
        ("messages", {"messages": [system("S"), *QA, user("Q2")]}, [system("S"), *QA, user("Q2")]),
        ("messages", {"messages": QA, "system": "S"}, [system("S"), *QA]),
        ("messages", {"messages": [system("S"), *QA], "system": "S"}, [system("S"), *QA]),
        ("messages", {"messages": [user("Q"), user("Q2")]}, [user("Q"), user("Q2")]),
        ("messages", {"messages": [user("Q"), {"role": "assistant", "content": None}]}, [user("Q"), assistant("")]),
        (
            "messages",
            {"messages": [user("Q"), {**assistant("A"), "reasoning_content": "R", "weight": 1, "tool_calls": None}]},
            [user("Q"), {**assistant("A"), "reasoning_content": "R"}],
        ),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A", "loss": True}]},
            QA,
        ),
        (
            "sharegpt",
            {"conversations": [{"from": "gpt", "value": "before"}, {"from": "human", "value": "Q"}]},
            [user("Q")],
        ),
        (
            "sharegpt",
            {"system": "S", "conversations": [{"from": "user", "value": "Q"}, {"from": "assistant", "value": "A"}]},
            [system("S"), *QA],
        ),
    ],
)
def test_messages(shape: Shape, row: dict[str, Any], messages: list[Message]) -> None:
    conversation = convert(shape, row)
    assert conversation.messages == messages
    assert conversation.tools is None


def test_renamed_columns() -> None:
    row = {"ask": "Q", "more": "I", "say": "A", "sys": "S", "fns": [{"name": "f"}], "prompt": "not this"}
    columns = {"prompt": "ask", "input": "more", "response": "say", "system": "sys", "tools": "fns"}
    conversation = convert("prompt_response", row, **columns)
    assert conversation.messages == [system("S"), user("Q\n\nI"), assistant("A")]
    assert conversation.tools == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    ]


@pytest.mark.parametrize(
    ("shape", "row", "kind", "detail"),
    [
        (
            "prompt_response",
            {"text": "Q"},
            "missing_column",
            "no prompt or question or instruction or query or problem",
        ),
        ("prompt_response_system", {"question": "Q"}, "missing_column", "no system_prompt or system"),
        ("tools_query_answers", {"query": "Q"}, "missing_column", "no tools"),
        ("prompt_response", {"prompt": None}, "empty_prompt", ""),
        ("prompt_response", {"prompt": " \n"}, "empty_prompt", ""),
        ("prompt_response", {"prompt": 7}, "not_text", "content is int"),
        ("prompt_response", {"prompt": "Q", "response": {"a": 1}}, "not_text", "content is dict"),
        ("prompt_response", {"prompt": [{"type": "image"}]}, "not_text", "a part of the content is of type 'image'"),
        ("messages", {"messages": []}, "no_user_turn", ""),
        ("messages", {"messages": None}, "bad_messages", "the turns are NoneType, not a list"),
        ("messages", {"messages": "[{"}, "bad_messages", "not JSON: "),
        ("messages", {"messages": ["Q", "A"]}, "bad_messages", "turn 0 is str, not an object"),
        ("messages", {"messages": [assistant("A")]}, "no_user_turn", ""),
        ("messages", {"messages": [user("Q"), {"role": "user", "content": " "}]}, "empty_prompt", "turn 1"),
        ("messages", {"messages": [user("Q"), system("S")]}, "system_not_first", "turn 1"),
        ("messages", {"messages": [system("S"), system("S"), user("Q")]}, "system_not_first", "turn 1"),
        ("messages", {"messages": [system("S"), user("Q")], "system": "T"}, "two_systems", "a column and"),
        ("messages", {"messages": [{"role": "User", "content": "Q"}]}, "unknown_role", "User"),
        (
            "messages",
            {"messages": [{"role": "user", "text": "Q"}]},
            "bad_messages",
            "turn 0 has no `content`; it has role",
        ),
        ("sharegpt", {"conversations": QA}, "bad_messages", "turn 0 has no text in `from`; it has content, role"),
        ("messages", {"messages": QA, "tools": "{"}, "bad_tools", "not JSON: "),
        ("messages", {"messages": QA, "tools": {"name": "f"}}, "bad_tools", "tools are dict, not a list"),
        ("messages", {"messages": QA, "tools": [{"type": "function"}]}, "bad_tools", "a tool has no name"),
        (
            "messages",
            {"messages": QA, "tools": [{"name": "f", "parameters": {"a": 1}}]},
            "bad_tools",
            "the argument 'a'",
        ),
        (
            "messages",
            {"messages": QA, "tools": [{"name": "f", "x": 1, "parameters": {"a": {"default": 2**64}}}]},
            "bad_tools",
            "",
        ),
    ],
)
def test_rejects(shape: Shape, row: dict[str, Any], kind: str, detail: str) -> None:
    found, said = rejected(shape, row)
    assert found == kind
    assert said.startswith(detail)


def test_missing_renamed_column_is_named() -> None:
    assert rejected("prompt_response", {"prompt": "Q"}, prompt="ask") == ("missing_column", "no ask")


def test_every_role_of_the_table_is_read() -> None:
    for raw, role in ROLES.items():
        value = '{"name": "f", "arguments": {}}' if role == "call" else "text"
        turns = [{"from": "human", "value": "Q"}, {"from": raw, "value": value}]
        if role == "system":
            turns.reverse()
        conversation = convert("sharegpt", {"conversations": turns})
        assert {message["role"] for message in conversation.messages} == {
            "user",
            "assistant" if role == "call" else role,
        }
        assert sorted(conversation.roles) == sorted(["human", raw])


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
    ("row", "expected"),
    [
        ({"id": "a"}, "a"),
        ({"id": 7, "uuid": "b"}, "7"),
        ({"id": 2**70}, str(2**70)),
        ({"id": None, "uuid": "b"}, "b"),
        ({"id": True}, None),
        ({"id": " "}, None),
        ({"id": [1]}, None),
        ({}, None),
    ],
)
def test_row_id(row: dict[str, Any], expected: str | None) -> None:
    assert row_id(row, USUAL["messages"]["id"]) == expected


def test_row_id_of_a_named_column() -> None:
    names = column_names("messages", Columns(id="key"))["id"]
    assert row_id({"id": "a", "key": "b"}, names) == "b"


def test_every_shape_of_the_config_is_known() -> None:
    assert set(USUAL) == set(get_args(Shape))


words = st.sampled_from(
    ["role", "content", "from", "value", "user", "human", "assistant", "gpt", "system", "tool", "function_call", "text",
     "type", "name", "arguments", "parameters", "properties", "function", "tool_calls", "items", "object", "List[int]",
     '[{"name": "f"}]', "{}", ""]
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(), inner, max_size=5),
    max_leaves=30,
)
turn = st.fixed_dictionaries(
    {"role": words, "content": anything, "from": words, "value": anything},
    optional={"tool_calls": anything, "function_call": anything, "name": anything, "tool_call_id": anything},
)
fields = anything | st.lists(turn, max_size=5)
known_columns = sorted({name for names in USUAL.values() for usual in names.values() for name in usual})


@given(shape=st.sampled_from(get_args(Shape)), row=st.dictionaries(st.sampled_from(known_columns), fields, max_size=6))
def test_no_row_raises_anything_but_a_reject(shape: Shape, row: dict[str, Any]) -> None:
    try:
        conversation = convert(shape, row)
    except Rejected as why:
        assert why.kind
        return
    kinds = [message["role"] for message in conversation.messages]
    assert "system" not in kinds[1:]
    assert next(kind for kind in kinds if kind != "system") == "user"
    for message in conversation.messages:
        assert isinstance(message["content"], str)
        assert message["role"] != "user" or message["content"].strip()


def test_nesting_without_end_is_a_reject() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"properties": {"a": deep}, "type": "object"}
    kind, _ = rejected("messages", {"messages": QA, "tools": [{"name": "f", "parameters": deep}]})
    assert kind == "nested_too_deep"

"""Rows to conversations: the exact messages of every shape, and a reason for every row that is none."""

import json
from typing import Any, get_args

import pytest

from workflow_scripts.config import Columns, Shape
from workflow_scripts.records import Message
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import ROLES, USUAL, Conversation, column_names, converter, row_id


def convert(shape: Shape, row: dict[str, Any], **columns: str) -> Conversation:
    return converter(shape, column_names(shape, Columns(**columns)))(row)


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
        ("prompt_response", {"question": "Q", "answer": "A", "system": "S"}, [system("S"), *QA]),
        ("prompt_response", {"instruction": "Q", "output": "A"}, QA),
        ("prompt_response", {"problem": "Q", "solution": "A"}, QA),
        ("prompt_response", {"prompt": " Q\n", "completion": None}, [user(" Q\n")]),
        ("prompt_response", {"prompt": "Q"}, [user("Q")]),
        ("prompt_response", {"prompt": "Q", "response": 2**70}, [user("Q"), assistant(str(2**70))]),
        ("prompt_response", {"prompt": "Q", "response": 0.5}, [user("Q"), assistant("0.5")]),
        ("prompt_response", {"prompt": "Q", "response": 0}, [user("Q"), assistant("0")]),
        ("prompt_response", {"prompt": "Q", "response": float("nan")}, [user("Q")]),
        ("prompt_response", {"prompt": "Q", "response": True}, [user("Q")]),
        ("prompt_response", {"prompt": "Q", "response": {"a": 1}}, [user("Q")]),
        ("prompt_response", {"prompt": "Q", "response": ["A"]}, [user("Q")]),
        ("alpaca", {"question": "Q", "input": "", "context": "C"}, [user("Q\n\nC")]),
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
        ("messages", {"messages": QA, "system": None, "system_prompt": "S"}, [system("S"), *QA]),
        (
            "messages",
            {"messages": QA, "chat_template_kwargs": {"custom_instructions": "S", "xml_tools": []}},
            [system("S"), *QA],
        ),
        ("messages", {"messages": [assistant("before"), system("S"), *QA]}, [system("S"), *QA]),
        (
            "messages",
            {"messages": [user("<think>x</think>"), assistant("<think>R</think>\n\nA")]},
            [user("<think>x</think>"), {**assistant("A"), "reasoning_content": "R"}],
        ),
        (
            "messages",
            {"messages": [user("Q"), {**assistant("<think>x</think>A"), "reasoning_content": "R"}]},
            [user("Q"), {**assistant("<think>x</think>A"), "reasoning_content": "R"}],
        ),
        (
            "messages",
            {"messages": [user("Q"), assistant("<tool_call>{}</tool_call>"), {"role": "tool", "content": "[1]"}]},
            [user("Q"), assistant("<tool_call>{}</tool_call>"), {"role": "tool", "content": "[1]"}],
        ),
        ("messages_json_string", {"messages_json": json.dumps([system("S"), *QA])}, [system("S"), *QA]),
        ("messages_json_string", {"messages": json.dumps(QA), "system": "S"}, [system("S"), *QA]),
        ("prompt_response", {"prompt": "Q", "response": "<think>\nR\n</think>\nA"}, None),
        ("prompt_response", {"prompt": "Q", "response": "", "answer": "A"}, QA),
        ("prompt_response", {"prompt": "Q", "response": "[]"}, [user("Q"), assistant("[]")]),
        ("alternating_strings", {"conversations": ["Q", "A"]}, QA),
        ("alternating_strings", {"data": ["Q", "A", " Q2\n"]}, [*QA, user(" Q2\n")]),
        ("alternating_strings", {"data": json.dumps(["Q", "", "Q2"])}, [user("Q"), assistant(""), user("Q2")]),
        ("transcript_string", {"chat": "USER: Q\n\n\nASSISTANT: A <|endoftext|>\n\n\n"}, QA),
        ("transcript_string", {"system": "SYSTEM: S\n\n", "chat": "\nUSER: Q\n\n\nASSISTANT:A"}, [system("S"), *QA]),
        ("transcript_string", {"system": None, "chat": "USER:  Q \n\n\n"}, [user(" Q ")]),
        ("message_tree", {"text": [{"role": "prompter", "text": "Q"}, {"role": "assistant", "text": "A"}]}, QA),
    ],
)
def test_messages(shape: Shape, row: dict[str, Any], messages: list[Message] | None) -> None:
    conversation = convert(shape, row)
    assert conversation.messages == (messages or [user("Q"), {**assistant("A"), "reasoning_content": "R"}])
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
        ("alternating_strings", {"data": ["Q", None]}, "bad_messages", "turn 1 is NoneType, not a string"),
        ("alternating_strings", {"data": [" "]}, "empty_prompt", "turn 0"),
        ("alternating_strings", {"data": {}}, "bad_messages", "the turns are dict, not a list"),
        ("alternating_strings", {"data": "Q"}, "bad_messages", "not JSON: "),
        (
            "messages_json_string",
            {"messages": '[{"role": "user", "content": "\\ud800"}]'},
            "bad_messages",
            "not JSON: ",
        ),
        ("messages_json_string", {"messages": '{"role": "user"}'}, "bad_messages", "the turns are dict, not a list"),
        ("transcript_string", {"chat": ["USER: Q"]}, "bad_messages", "the chat is list, not a string"),
        ("transcript_string", {"chat": "Q\n\n\nUSER: Q"}, "bad_messages", "the chat does not begin with USER: or"),
        ("transcript_string", {"chat": "USER: \n\n\nASSISTANT: A"}, "empty_prompt", "turn 0"),
        ("message_tree", {"text": "Q"}, "bad_messages", "not JSON: "),
        ("messages", {"messages": QA, "tools": "{"}, "bad_tools", "not JSON: "),
        ("messages", {"messages": QA, "system": "<tools>[</tools>"}, "bad_tools", "not JSON: "),
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


def test_nesting_without_end_is_a_reject() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"properties": {"a": deep}, "type": "object"}
    kind, _ = rejected("messages", {"messages": QA, "tools": [{"name": "f", "parameters": deep}]})
    assert kind == "nested_too_deep"

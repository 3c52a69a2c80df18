"""`shape: auto`: what it recognizes, why, and what it says where nothing fits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.config import Columns
from workflow_scripts.sources.recognition import Unrecognized, recognize
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import converter

TURNS = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
FROM = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]


@pytest.mark.parametrize(
    ("row", "shape", "named", "why"),
    [
        (
            {"messages": TURNS, "prompt": "Q"},
            "messages",
            {},
            "column `messages` is a list of {role, content} in 3 of 3 rows",
        ),
        (
            {"conversations": TURNS},
            "messages",
            {},
            "column `conversations` is a list of {role, content} in 3 of 3 rows",
        ),
        (
            {"dialogue": TURNS},
            "messages",
            {"prompt": "dialogue"},
            "column `dialogue` is a list of {role, content} in 3 of",
        ),
        ({"messages": None, "conversation": TURNS}, "messages", {"prompt": "conversation"}, "column `conversation` is"),
        (
            {"conversations": FROM, "system": "S"},
            "sharegpt",
            {},
            "column `conversations` is a list of {from, value} in 3",
        ),
        (
            {"conversations": json.dumps(FROM)},
            "sharegpt",
            {},
            "column `conversations` is a JSON string of a list of {from",
        ),
        (
            {"messages_json": json.dumps(TURNS)},
            "messages_json_string",
            {},
            "column `messages_json` is a JSON string of",
        ),
        (
            {"trace": json.dumps(TURNS)},
            "messages_json_string",
            {"prompt": "trace"},
            "column `trace` is a JSON string of",
        ),
        ({"data": ["Q", "A"]}, "alternating_strings", {}, "column `data` is a list of strings in 3 of 3 rows"),
        ({"chat": "USER: Q\n\n\nASSISTANT: A"}, "transcript_string", {}, "column `chat` is a transcript of USER: and"),
        (
            {"query": "Q", "tools": "[]", "answers": '[{"name": "a"}]'},
            "tools_query_answers",
            {},
            "columns `query`, `tools`, `answers`; `query` is text in 3 of 3 rows",
        ),
        (
            {"instruction": "Q", "input": "", "output": "A"},
            "alpaca",
            {},
            "columns `instruction`, `input`, `output`; `instruction` is text in 3 of 3 rows",
        ),
        (
            {"question": "Q", "system_prompt": None, "response": "A"},
            "prompt_response_system",
            {},
            "columns `question`, `system_prompt`, `response`; `question` is text in 3 of 3 rows",
        ),
        (
            {"query": "Q", "answer": "[1]"},
            "prompt_response",
            {},
            "columns `query`, `answer`; `query` is text in 3 of 3",
        ),
        (
            {"prompt": 7, "query": "Q"},
            "prompt_response",
            {"prompt": "query"},
            "column `query` and no answer; `query` is",
        ),
        (
            {"message_id": "a", "parent_id": None, "role": "prompter", "text": "Q"},
            "message_tree",
            {},
            "each row is one message, with `message_id`, `parent_id`, `role` and `text`",
        ),
    ],
)
def test_recognized(row: dict[str, Any], shape: str, named: dict[str, str], why: str) -> None:
    found = recognize([row] * 3, Columns())
    assert (found.shape, found.columns) == (shape, Columns(**named))
    assert found.why.startswith(f"shape {shape}: {why}")


TOOLS = [{"name": "f"}]


@pytest.mark.parametrize(
    ("row", "shape", "why", "asked"),
    [
        ({"instruction": "Q", "input": "I"}, "alpaca", "columns `instruction`, `input` and no answer; ", "Q\n\nI"),
        (
            {"instruction": "Q", "input": "I", "output": 7},
            "alpaca",
            "columns `instruction`, `input`, `output`; ",
            "Q\n\nI",
        ),
        (
            {"instruction": "Q", "input": "", "output": "A", "system": "S"},
            "alpaca",
            "columns `instruction`, `input`, `system`, `output`; ",
            "S|Q",
        ),
        (
            {"instruction": "Q", "context": "C", "response": "A"},
            "alpaca",
            "columns `instruction`, `context`, `response`; ",
            "Q\n\nC",
        ),
        ({"question": "Q", "context": "C", "answers": {"text": ["A"]}}, "alpaca", "", "Q\n\nC"),
        ({"prompt": "Q", "system": "S"}, "prompt_response_system", "columns `prompt`, `system` and no answer; ", "S|Q"),
        ({"query": "Q", "tools": TOOLS}, "tools_query_answers", "columns `query`, `tools` and no answer; ", "f:Q"),
        ({"prompt": "Q", "response": "A", "tools": TOOLS}, "prompt_response", "", "f:Q"),
        ({"query": "Q", "tools": TOOLS, "answers": [{"name": "f"}], "system": "S"}, "tools_query_answers", "", "f:S|Q"),
        ({"prompt": "Q", "context_messages": TURNS}, "prompt_response", "column `prompt` and no answer; ", "Q"),
        ({"prompt": "Q", "chosen": TURNS}, "prompt_response", "column `prompt` and no answer; ", "Q"),
    ],
)
def test_no_part_of_a_prompt_is_left_out(row: dict[str, Any], shape: str, why: str, asked: str) -> None:
    found = recognize([row] * 3, Columns())
    assert found.shape == shape
    assert found.why.startswith(f"shape {shape}: {why}")
    read = converter(found.shape, found.names())(row)
    tools = "".join(f"{tool['function']['name']}:" for tool in read.tools or [])
    assert tools + "|".join(one["content"] for one in read.messages if one["role"] in ("system", "user")) == asked


def test_an_input_that_few_rows_have() -> None:
    rows = [{"instruction": "Q", "input": "I", "output": "A"}, *[{"instruction": "Q", "output": "A"}] * 9]
    assert recognize(rows, Columns()).shape == "alpaca"


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"instruction": "Q", "input": "", "output": "A", "history": [["a", "b"]]}, "`history`"),
        ({"instruction": "Q", "input": "", "output": "A", "history": []}, ""),
        ({"question": "Q", "context": ["C"], "answers": {"text": ["A"]}}, "`context`, `answers`"),
        (
            {"prompt": "Q", "question": "Q2", "messages": TURNS, "id": "x", "lang": "en", "keep": "k"},
            "`prompt`, `question`",
        ),
        ({"prompt": "Q", "response": "", "answer": "A", "n": 1, "user_id": "u", "at": None}, ""),
        ({"prompt": "Q", "response": {"a": 1}, "tools": ["saw"], "system": 3}, "`response`, `tools`"),
        ({"instruction": "Q", "input": "", "context": ["C"], "output": "A"}, "`context`"),
        ({"messages": TURNS, "chat_template_kwargs": {"custom_instructions": "S"}}, ""),
        ({"prompt": "Q", **{f"c{n}": "x" for n in range(14)}}, ", ".join(f"`c{n}`" for n in range(12)) + " and 2 more"),
    ],
)
def test_what_is_not_read_is_said(row: dict[str, Any], unread: str) -> None:
    found = recognize([row] * 3, Columns(), where=["keep"])
    assert found.why.partition("; not read: ")[2] == unread
    assert "Q" in [message["content"] for message in converter(found.shape, found.names())(row).messages]


def test_columns_that_the_config_names_decide() -> None:
    row = {"messages": TURNS, "ask": "Q", "say": "A", "nested": {"ask": "Q"}}
    found = recognize([row], Columns(prompt="ask", response="say"))
    assert (found.shape, found.columns) == ("prompt_response", Columns(prompt="ask", response="say"))
    assert recognize([row], Columns(prompt="nested.ask")).shape == "prompt_response"
    assert recognize([row], Columns(prompt="messages")).shape == "messages"
    with pytest.raises(Unrecognized):
        recognize([row], Columns(prompt="nothing"))
    with pytest.raises(Unrecognized):
        recognize([{"messages": TURNS}], Columns(input="x"))


def test_few_other_rows_do_not_matter() -> None:
    rows: list[dict[str, Any]] = [{"messages": TURNS}] * 8 + [{"messages": "x"}, {"other": 1}]
    assert recognize(rows, Columns()).why.endswith("in 8 of 10 rows")
    with pytest.raises(Unrecognized):
        recognize([{"messages": TURNS}, *[{"other": 1}] * 9], Columns())


def test_two_columns_of_unusual_names_are_no_answer() -> None:
    with pytest.raises(Unrecognized) as caught:
        recognize([{"chosen": TURNS, "rejected": TURNS, "score": 0.5, "tags": ["a"], "at": None}], Columns())
    assert caught.value.found == [
        "`chosen`: a list of {role, content} (1)",
        "`rejected`: a list of {role, content} (1)",
        "`score`: a number (1)",
        "`tags`: a list of strings (1)",
        "`at`: empty (1)",
    ]
    with pytest.raises(Unrecognized):
        recognize([], Columns())


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("USER: x"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "x"]), inner, max_size=3)
        | st.lists(inner, max_size=2).map(json.dumps)
    ),
    max_leaves=12,
)
columns = st.sampled_from(["messages", "conversations", "prompt", "response", "system", "tools", "chat", "a.b", "a"])


@given(rows=st.lists(st.dictionaries(columns, anything, max_size=5), max_size=5))
def test_whatever_the_rows_a_shape_is_recognized_or_none(rows: list[dict[str, Any]]) -> None:
    try:
        found = recognize(rows, Columns(id="a.b"))
    except Unrecognized:
        return
    read = converter(found.shape, found.names())
    for row in rows:
        try:
            read(row)
        except Rejected:
            pass


def test_lists_of_objects_of_other_keys_are_told_with_their_keys() -> None:
    rows: list[dict[str, Any]] = [{"talk": [{"role": "user", "value": f"{n}"}], "n": [1]} for n in range(3)]
    with pytest.raises(Unrecognized) as caught:
        recognize(rows, Columns())
    assert caught.value.found == ["`talk`: a list of {role, value} (3)", "`n`: a list (3)"]

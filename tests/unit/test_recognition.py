"""`shape: auto`: what it recognizes, why, and what it says where nothing fits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.config import Columns
from workflow_scripts.sources.recognition import Unrecognized, recognize
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import column_names, converter

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
    read = converter(found.shape, column_names(found.shape, found.columns))
    for row in rows:
        try:
            read(row)
        except Rejected:
            pass

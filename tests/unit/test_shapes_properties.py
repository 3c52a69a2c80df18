"""Whatever a row holds: it is a prompt whose texts are those of the row, or a reject."""

import json
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.config import Columns, Shape
from workflow_scripts.sources import prompt_ids
from workflow_scripts.sources.readers import SourceRow
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import USUAL, Conversation, column_names, converter, gather

words = st.sampled_from(
    ["role", "content", "from", "value", "user", "human", "assistant", "gpt", "system", "tool", "function_call", "text",
     "type", "name", "arguments", "parameters", "properties", "function", "tool_calls", "items", "object", "List[int]",
     '[{"name": "f"}]', '[{"role": "user", "content": "Q"}]', "{}", "", "[f(a=1)]", "USER: Q", "def f(a): ...",
     '<tools>[{"name": "f"}]</tools>', "<tool_call>{'name': 'f'}</tool_call>", "<tool_response>1</tool_response>",
     "<think>a</think>b", "<functioncall>{", "tools", "custom_instructions", "xml_tools", "python_tools"]
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
known_columns = sorted(
    {name.partition(".")[0] for names in USUAL.values() for usual in names.values() for name in usual}
)
known_columns += ["message_id", "parent_id", "role", "rank", "deleted"]


@given(shape=st.sampled_from(get_args(Shape)), row=st.dictionaries(st.sampled_from(known_columns), fields, max_size=6))
def test_no_row_raises_anything_but_a_reject(shape: Shape, row: dict[str, Any]) -> None:
    gathered = next(iter(gather(shape, column_names(shape, Columns()), [SourceRow("x", 0, 0, row)]))).row
    if not isinstance(gathered, dict):
        assert gathered.kind
        return
    try:
        conversation = converter(shape, column_names(shape, Columns()))(gathered)
    except Rejected as why:
        assert why.kind
        return
    kinds = [message["role"] for message in conversation.messages]
    assert "system" not in kinds[1:]
    assert next(kind for kind in kinds if kind != "system") == "user"
    for message in conversation.messages:
        assert isinstance(message["content"], str)
        assert message["role"] != "user" or message["content"].strip()
    json.dumps(conversation.messages)
    json.dumps(conversation.tools, allow_nan=False)
    prompt_ids.identify(conversation.messages, conversation.tools)


def made(turns: list[Any], **columns: Any) -> Conversation | tuple[str, str]:
    try:
        return converter("messages", column_names("messages", Columns()))({"messages": turns, **columns})
    except Rejected as why:
        return why.kind, why.detail


plain_turn = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "human", "assistant", "gpt", "system", "tool"]), "content": words | st.text()}
)


@given(turns=st.lists(plain_turn | turn, max_size=4))
def test_plain_turns_are_read_as_all_others_are(turns: list[Any]) -> None:
    # A further field of the turn, which means nothing, takes it through all the rules.
    assert made(turns) == made([{**turn, "weight": 1} for turn in turns])


said = st.text(min_size=1).filter(str.strip)
spoken = said.filter(lambda text: "USER:" not in text and "ASSISTANT:" not in text and "FUNCTION" not in text)


def users(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages if message["role"] == "user"]


@given(texts=st.lists(said, min_size=1, max_size=4))
def test_what_users_say_is_kept_to_the_character(texts: list[str]) -> None:
    tools = [{"name": "f"}]
    turns = [{"from": "human", "value": text} for text in texts]
    assert (
        users(converter("sharegpt", column_names("sharegpt", Columns()))({"conversations": turns, "tools": tools}))
        == texts
    )
    turns = [{"role": "user", "content": text} for text in texts]
    assert (
        users(converter("messages", column_names("messages", Columns()))({"messages": turns, "tools": tools})) == texts
    )
    assert (
        users(
            converter("messages_json_string", column_names("messages_json_string", Columns()))(
                {"messages": json.dumps(turns), "tools": tools}
            )
        )
        == texts
    )
    strings = [spoken for text in texts for spoken in (text, "A")]
    assert (
        users(converter("alternating_strings", column_names("alternating_strings", Columns()))({"data": strings}))
        == texts
    )
    single: dict[Shape, str] = {"prompt_response": "prompt", "alpaca": "instruction", "tools_query_answers": "query"}
    for shape, column in single.items():
        assert users(converter(shape, column_names(shape, Columns()))({column: texts[0], "tools": "[]"})) == texts[:1]
    rows = [
        SourceRow("x", n, n, {"message_id": f"{n}", "parent_id": f"{n - 1}" if n else None, "role": role, "text": s})
        for n, s in enumerate(strings)
        for role in (("prompter", "assistant")[n % 2],)
    ]
    root = next(iter(gather("message_tree", column_names("message_tree", Columns()), rows))).row
    assert isinstance(root, dict)
    assert users(converter("message_tree", column_names("message_tree", Columns()))(root)) == texts


@given(texts=st.lists(spoken, min_size=1, max_size=3))
def test_what_users_say_in_a_transcript_is_kept_to_the_character(texts: list[str]) -> None:
    chat = "".join(f"USER: {text}\n\n\nASSISTANT: A <|endoftext|>\n\n\n" for text in texts)
    assert users(converter("transcript_string", column_names("transcript_string", Columns()))({"chat": chat})) == texts


@given(system=said.filter(lambda text: "<tools>" not in text), answer=said)
def test_other_texts_are_kept_too(system: str, answer: str) -> None:
    row = {"system_prompt": system, "prompt": "Q", "response": answer}
    messages = converter("prompt_response_system", column_names("prompt_response_system", Columns()))(row).messages
    assert [message["content"] for message in messages] == [system, "Q", answer]


answers = st.sampled_from(
    ["A", "", "<think>x</think>A", "[f(a=1)]", "[f(", "<tool_call>{'name': 'f'}</tool_call>", "<tool_call>", "[1]"]
)


@given(one=answers, other=answers, tools=st.booleans())
def test_ids_do_not_depend_on_recorded_answers(one: str, other: str, tools: bool) -> None:
    ids = set()
    for answer in (one, other):
        result = "<tool_response>{'name': 'f', 'content': 1}</tool_response>\n<tool_response>2</tool_response>"
        turns = [("human", "Q"), ("gpt", answer), ("tool", result), ("gpt", answer), ("human", "Q2")]
        row = {"conversations": [{"from": role, "value": text} for role, text in turns], "tools": '[{"name": "f"}]'}
        conversation = converter("sharegpt", column_names("sharegpt", Columns()))(
            row if tools else {**row, "tools": None}
        )
        made = (conversation.messages, conversation.tools)
        ids.add(prompt_ids.identify(*made))
    assert len(ids) == 1

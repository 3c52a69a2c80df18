"""Prompt ids: a stable contract, blind to recorded answers."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.records import Message
from workflow_scripts.sources.prompt_ids import asked as asked_of
from workflow_scripts.sources.prompt_ids import identify, prompt_side, prompt_text, whole_key

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_canonical_form() -> None:
    messages: list[Message] = [
        {"role": "system", "content": "S"},
        user("Größe?\n"),
        {"role": "assistant", "content": "", "tool_calls": []},
        assistant("and more"),
        {"role": "tool", "content": "7", "tool_call_id": "x", "name": "f"},
        assistant("A"),
    ]
    tools = '[{"function":{"name":"f","parameters":{"type":"object"}},"type":"function"}]'
    first = '{"messages":[{"content":"Größe?\\n","role":"user"}],"system":"S","tools":' + tools + "}"
    whole = (
        '{"messages":[{"content":"Größe?\\n","role":"user"},null,{"content":"7","name":"f","role":"tool"}],'
        '"system":"S","tools":' + tools + "}"
    )
    assert identify(messages, TOOLS).first_id == sha256(first)
    assert identify(messages, TOOLS).all_id == sha256(whole)
    assert identify([user("Q")], None).first_id == sha256(
        '{"messages":[{"content":"Q","role":"user"}],"system":null,"tools":null}'
    )


contents = st.text(max_size=5)
answers = st.builds(
    lambda content, reasoning, name: Message(
        role="assistant",
        content=content,
        reasoning_content=reasoning,
        tool_calls=[{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}],
    ),
    contents,
    contents,
    contents,
)
asked = st.builds(user, contents) | st.builds(lambda text: Message(role="tool", content=text), contents)


@given(turns=st.lists(st.tuples(asked, st.lists(answers, max_size=2))), data=st.data())
def test_ids_do_not_depend_on_recorded_answers(turns: list[tuple[Message, list[Message]]], data: st.DataObject) -> None:
    def conversation(replies: list[list[Message]]) -> list[Message]:
        return [message for (asking, _), reply in zip(turns, replies, strict=True) for message in (asking, *reply)]

    recorded = conversation([reply for _, reply in turns])
    other = conversation([data.draw(st.lists(answers, min_size=1, max_size=3)) if reply else [] for _, reply in turns])
    assert identify(recorded, TOOLS) == identify(other, TOOLS) == identify([*recorded, assistant("last")], TOOLS)


@given(first=st.lists(asked, max_size=3), second=st.lists(asked, max_size=3))
def test_other_questions_have_other_ids(first: list[Message], second: list[Message]) -> None:
    assert (identify(first, None).first_id == identify(second, None).first_id) == (first == second)


def test_what_changes_an_id() -> None:
    base = [user("Q"), assistant("A"), user("Q2")]
    cases: list[tuple[list[Message], Any]] = [
        (base, None),
        (base, TOOLS),
        ([{"role": "system", "content": "S"}, *base], None),
        ([user("Q"), user("Q2")], None),
        ([user("Q")], None),
        ([user("q"), assistant("A"), user("Q2")], None),
        ([{**user("Q"), "name": "Ann"}, assistant("A"), user("Q2")], None),
    ]
    assert len({identify(messages, tools).all_id for messages, tools in cases}) == len(cases)
    assert identify(base, []).all_id == identify(base, None).all_id
    assert identify(base, None).first_id == identify([user("Q")], None).first_id == identify([user("Q")], None).all_id


def test_call_ids_of_results_do_not_count() -> None:
    def conversation(call_id: str) -> list[Message]:
        return [user("Q"), assistant(""), {"role": "tool", "content": "1", "tool_call_id": call_id}]

    assert identify(conversation("a"), None).all_id == identify(conversation("b"), None).all_id


def test_prompt_side() -> None:
    assert prompt_side([user("Q"), user("R"), assistant("A"), user("S")]) == [user("Q"), user("R")]
    assert prompt_side([user("Q")]) == [user("Q")]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("What is  this?", "what is\nthis? "),
        ("STRASSE", "straße"),
        ("caf\u00e9", "cafe\u0301"),
        ("a\u00a0b", "a b"),
        ("\u0345", "\u03b9"),
    ],
)
def test_text_that_counts_as_the_same(one: str, two: str) -> None:
    assert prompt_text([user(one)], None) == prompt_text([user(two)], None)
    assert identify([user(one)], None).dedupe_key == identify([user(two)], None).dedupe_key
    assert identify([user(one)], None).first_id != identify([user(two)], None).first_id


def test_text_that_does_not_count_as_the_same() -> None:
    cases: list[tuple[list[Message], Any]] = [
        ([user("a b")], None),
        ([user("ab")], None),
        ([user("a"), user("b")], None),
        ([user("a user: b")], None),
        ([{"role": "system", "content": "a"}, user("b")], None),
        ([user("a b")], TOOLS),
        ([{**user("a b"), "name": "Ann"}], None),
        ([{**user("a b"), "name": "Ben"}], None),
        ([{**user('b": c'), "name": "a"}], None),
        ([{**user("c"), "name": 'a": b'}], None),
    ]
    assert len({prompt_text(messages, tools) for messages, tools in cases}) == len(cases)


@given(one=st.lists(asked | answers, max_size=5), two=st.lists(asked | answers, max_size=5))
def test_whole_conversations_of_one_id_have_one_key(one: list[Message], two: list[Message]) -> None:
    ids = identify(one, TOOLS), identify(two, TOOLS)
    if ids[0].all_id == ids[1].all_id:
        assert whole_key(one, TOOLS) == whole_key(two, TOOLS)
    if ids[0].first_id == ids[0].all_id:
        assert whole_key(one, TOOLS) == ids[0].dedupe_key


def test_what_whole_conversations_are_told_by() -> None:
    base = [user("Q"), assistant("A"), user("What  now?")]
    same = [user("q "), assistant("B"), assistant("C"), user("what now?"), assistant("D")]
    assert whole_key(base, None) == whole_key(same, None)
    others: list[list[Message]] = [[user("Q"), user("What now?")], [user("Q"), assistant("A"), user("Why?")], base[:1]]
    assert len({whole_key(messages, None) for messages in [base, *others]}) == 4
    assert asked_of(base, "first") == base[:1] and asked_of(base, "all") == [base[0], base[2]]


def declared(description: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "description": description, **more}}]


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("Says hi.", "says  HI.", True),
        ("Says hi.\n\tThen bye.", " Says hi. Then bye.\n", True),
        ("caf\u00e9\u2028x", "cafe\u0301 X", True),
        ("a\\nb", "a b", False),  # a backslash is no white space
        ("Says hi.", "Says ho.", False),
    ],
)
def test_the_text_of_tools_counts_as_that_of_messages_does(one: str, two: str, same: bool) -> None:
    keys = {identify([user("Q")], declared(text, enum=["x", 1, None])).dedupe_key for text in (one, two)}
    assert (len(keys) == 1) == same
    assert identify([user("Q")], declared(one)).dedupe_key not in keys

"""The turn policy: invariants of any conversation, seeds and draws, marks, and what is kept of one that fails."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_completions import prompt, reply
from workflow_scripts.completions.conversation import Conversation
from workflow_scripts.completions.faults import Fault
from workflow_scripts.completions.marks import marks
from workflow_scripts.completions.packing import pack, unpack
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.config import Sampling
from workflow_scripts.records import Mark, Message, Prompt

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
WHO = Answerer("s")


def made_of(messages: list[Message], **changes: Any) -> Prompt:
    whole: Any = {**prompt(), "messages": messages, "tools": TOOLS, **changes}
    return whole  # type: ignore[no-any-return]


def call(call_id: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(content: str = "A", calls: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    finish = "tool_calls" if calls else "stop"
    return reply(**{"message": {"content": content, "tool_calls": calls}, "finish_reason": finish} | changes)


# --- invariants ---

arguments = st.sampled_from(["{}", '{"a": 1}', '{"a": 1.0}', '{"a": true}', "no JSON"])
recorded_calls = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("fg"), arguments), max_size=3)
contents = st.text(max_size=3)


@st.composite
def recorded(draw: st.DrawFn) -> list[Message]:
    """A conversation as the sources give it: a system message or none, a user's first, then anything."""
    messages: list[Message] = [{"role": "system", "content": "S"}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": "Q"})
    for kind in draw(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=12)):
        content = draw(contents)
        if kind == "user":
            messages.append({"role": "user", "content": content})
        elif kind == "assistant":
            calls: Any = [call(*one) for one in draw(recorded_calls)]
            messages.append({"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})})  # type: ignore[typeddict-item]
        else:
            messages.append({"role": "tool", "content": content, "tool_call_id": draw(st.sampled_from("xyz?"))})
    return messages


@given(messages=recorded(), data=st.data())
def test_what_holds_of_any_conversation(messages: list[Message], data: st.DataObject) -> None:
    before = json.dumps(messages)
    conversation = Conversation(made_of(messages), 0, Sampling())
    bodies: list[dict[str, Any]] = []
    numbers = iter(range(10_000))
    while conversation.ended is None:
        bodies.append(conversation.request("m", "r"))
        calls = [call(f"n{next(numbers)}", name, given) for _, name, given in data.draw(recorded_calls)]
        conversation.take(answer(data.draw(contents), calls), "r", WHO, 1, 0.0)
    completion = conversation.completion()
    said = completion["messages"]
    assert json.dumps(messages) == before
    for body in bodies:
        roles = [message["role"] for message in body["messages"]]
        assert roles[-1] in ("user", "tool") and "system" not in roles[1:]
        assert body["messages"] == said[: len(body["messages"])]  # each request is the history so far
    assert [message["role"] for message in said].count("assistant") == len(completion["turns"]) == len(bodies)
    assert said[-1]["role"] == "assistant"
    # Users are heard in order, and to the end if the conversation is complete.
    users = [[message["content"] for message in each if message["role"] == "user"] for each in (said, messages)]
    assert users[0] == users[1][: len(users[0])] and (completion["ended"] != "complete" or users[0] == users[1])
    # Each call of the history has one result, right after its turn, in order; each recorded result is used once.
    first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    for at, message in enumerate(said[first:-1], first):
        wanted = [one["id"] for one in message.get("tool_calls", ())]
        given = said[at + 1 : at + 1 + len(wanted)]
        assert [one.get("tool_call_id") for one in given] == wanted and all(one["role"] == "tool" for one in given)
    there = Counter(message["content"] for message in messages if message["role"] == "tool")
    assert Counter(message["content"] for message in said if message["role"] == "tool") <= there


def test_two_samples_have_histories_of_their_own() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "", "tool_calls": [call("x", "f")]},  # type: ignore[list-item]
        {"role": "tool", "content": "sun", "tool_call_id": "x"},
        {"role": "user", "content": "2"},
    ]
    first, second = (Conversation(made_of(messages), sample, Sampling(n=2)) for sample in range(2))
    for conversation, calls in ((first, [call("a", "f")]), (second, None)):
        conversation.take(answer("A", calls), "r", WHO, 1, 0.0)
    assert [message["role"] for message in first.request("m", "r")["messages"]] == ["user", "assistant", "tool"]
    assert [message["role"] for message in second.request("m", "r")["messages"]] == ["user", "assistant", "user"]


# --- how it ends ---

TALK: list[Message] = [
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "x"},
    {"role": "user", "content": "2"},
]


@pytest.mark.parametrize(
    ("said", "ended", "marks_of_it"),
    [
        (answer("A"), None, []),
        (answer("A", finish_reason="length"), None, []),  # a user goes on from half an answer
        (answer(""), "broken_turn", []),
        (answer("", finish_reason="length", message={"reasoning_content": "Hm"}), "broken_turn", []),
        (answer("A", [call("a", "f")], finish_reason="length"), "broken_turn", ["cut_call"]),
        (answer("A", [call("a", "f")]), "tool_call", []),
    ],
)
def test_what_can_be_built_on(said: dict[str, Any], ended: str | None, marks_of_it: list[str]) -> None:
    conversation = Conversation(made_of(TALK), 0, Sampling())
    conversation.take(said, "r", WHO, 1, 0.0)
    assert conversation.ended == ended and conversation.turns[0]["marks"] == marks_of_it


@pytest.mark.parametrize(
    ("fault", "ended"),
    [(Fault("too_long", "too many"), "context_full"), (Fault("refused", "must alternate"), "refused")],
)
def test_what_was_made_is_kept_where_there_can_be_no_later_turn(fault: Fault, ended: str) -> None:
    conversation = Conversation(made_of(TALK), 0, Sampling())
    assert not conversation.stop(fault)  # nothing to keep yet
    conversation.take(answer("A"), "r", WHO, 1, 0.0)
    assert not conversation.stop(Fault("bad_reply", "half"))  # which may come out better another time
    assert conversation.ended is None
    assert conversation.stop(fault)
    completion = conversation.completion()
    assert (completion["ended"], completion["ended_reason"]) == (ended, fault.reason)
    assert [message["content"] for message in completion["messages"]] == ["1", "A"] and len(completion["turns"]) == 1


def test_a_bad_reply_changes_nothing() -> None:
    conversation = Conversation(made_of(TALK), 0, Sampling())
    before = conversation.request("m", "r")
    calls: list[Any] = [
        [call("a", "f"), call("a", "g")],
        [call(None, "f")],  # type: ignore[arg-type]
        [call("a", "f", {"of": 1})],  # type: ignore[arg-type]
        [{"id": "a", "function": {"name": None, "arguments": "{}"}}],
    ]
    texts: list[Any] = [{"content": [{"type": "text", "text": "A"}]}, {"content": "A", "reasoning_content": 1}]
    odd = [*(answer("A", one) for one in calls), *(reply(message=one) for one in texts)]
    for bad in (reply(id="other"), {}, *odd):
        with pytest.raises(Fault):
            conversation.take(bad, "r", WHO, 1, 0.0)
    assert conversation.request("m", "r") == before and conversation.turns == [] and conversation.ended is None


def test_ids_of_calls_may_come_again_in_a_later_turn_and_no_arguments_are_an_empty_object() -> None:
    messages: Any = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "", "tool_calls": [call("x", "f"), call("y", "f")]},
        {"role": "tool", "content": "one", "tool_call_id": "x"},
        {"role": "tool", "content": "two", "tool_call_id": "y"},
    ]
    conversation = Conversation(made_of(messages), 0, Sampling())
    for arguments in ("", None):
        conversation.take(answer("", [call("call_0", "f", arguments)]), "r", WHO, 1, 0.0)  # type: ignore[arg-type]
    said = conversation.request("m", "r")["messages"]
    assert [message["content"] for message in said] == ["1", "", "one", "", "two"]
    assert [one["function"]["arguments"] for message in said for one in message.get("tool_calls", ())] == ["{}", "{}"]
    assert [turn["marks"] for turn in conversation.turns] == [[], []]


@pytest.mark.parametrize(
    ("decoded", "content", "thoughts", "calls", "right"),
    [
        ("<think>\nHm\n</think>\n\nA<|im_end|>", "\n\nA", "\nHm\n", [], True),
        ("A<|im_end|>", "A", "", [], True),
        ("<|im_end|>", "", "", [], True),
        ("A<|im_end|>", "B", "", [], False),
        ("A</think>Hm", "A", "Hm", [], False),  # the text is before the thoughts
        ('<tool_call>{"arguments": {"in": "rome"}, "name": "f"}', "", "", [call("a", "f", '{"in":"rome"}')], True),
        ('<tool_call>{"arguments": {"in": "oslo"}, "name": "f"}', "", "", [call("a", "f", '{"in":"rome"}')], False),
        ("<function=g>", "", "", [call("a", "weather")], False),
        ("<function=f><parameter=of>é", "", "", [call("a", "f", '{"of":"\\u00e9"}')], True),
        ("<function=f>", "", "", [call("a", "f", "no JSON")], True),
    ],
)
def test_responses_that_do_not_say_what_is_stored_are_marked(
    decoded: str, content: str, thoughts: str, calls: list[dict[str, Any]], right: bool
) -> None:
    conversation = Conversation(made_of(TALK), 0, Sampling())
    who = Answerer("s", decode=lambda ids: decoded if ids == [4, 5] else "")
    message = {"content": content, "reasoning_content": thoughts, "tool_calls": calls or None}
    conversation.take(reply(message=message), "r", who, 1, 0.0)
    assert ("other_text" in conversation.turns[0]["marks"]) != right


# --- ids of the prompts ---

ids = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=5))
def test_turns_are_unpacked_as_they_were(turns: list[tuple[list[int], list[int]]]) -> None:
    made: list[Any] = [{"prompt_token_ids": asked, "response_token_ids": said} for asked, said in turns]
    packed: list[Any] = []
    for last, turn in zip([None, *made], made, strict=False):
        packed.append(pack(turn, last))
    assert unpack(packed) == made


def test_a_long_conversation_is_held_and_journaled_without_repeats() -> None:
    questions: list[Message] = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "x"}]
    conversation = Conversation(made_of(questions * 100), 0, Sampling())
    asked = [1] * 1000
    while conversation.ended is None:
        usage = {"prompt_tokens": len(asked), "completion_tokens": 2}
        conversation.take(answer("A", prompt_token_ids=asked, usage=usage), "r", WHO, 1, 0.0)
        asked = [*asked, 4, 5, 7, 8, 9]
    completion = conversation.completion()
    assert sum(len(turn["prompt_token_ids"]) for turn in completion["turns"]) == 1000 + 99 * 3
    whole = unpack(completion["turns"])
    assert [len(turn["prompt_token_ids"]) for turn in whole] == [1000 + 5 * turn for turn in range(100)]
    assert whole[-1]["prompt_token_ids"] + [4, 5, 7, 8, 9] == asked


# --- sampling ---


def bodies(sampling: Sampling, count: int, **changes: Any) -> list[dict[str, Any]]:
    prompts = [made_of(TALK[:1], prompt_id=f"{number:064x}", **changes) for number in range(count)]
    return [Conversation(one, sample, sampling).request("m", "r") for one in prompts for sample in range(sampling.n)]


def test_each_sample_and_turn_has_a_seed_and_says_whether_it_counts() -> None:
    seeds = set()
    for sample in range(64):
        conversation = Conversation(made_of(TALK), sample, Sampling(n=64, seed=5))
        for honoured in (True, False):
            seeds.add(conversation.request("m", "r")["seed"])
            conversation.take(answer("A"), "r", Answerer("s", honours_seeds=honoured), 1, 0.0)
        assert [turn["seed_honoured"] for turn in conversation.turns] == [True, False]
        assert [turn["sampling"]["seed"] for turn in conversation.turns] == [5 + sample, 5 + sample + 64]
    assert len(seeds) == 128


def test_a_list_is_gone_around_by_the_samples_from_a_place_of_the_prompts_own() -> None:
    sampling = Sampling.model_validate({"temperature": [0, 0.5, 1], "n": 3})
    drawn = [body["temperature"] for body in bodies(sampling, 300)]
    assert all(set(drawn[at : at + 3]) == {0, 0.5, 1} for at in range(0, 900, 3))
    assert all(70 < Counter(drawn[::3])[value] < 130 for value in (0, 0.5, 1))
    assert drawn == [body["temperature"] for body in bodies(sampling, 300)]
    other = Sampling.model_validate({"temperature": [0, 0.5, 1], "n": 3, "seed": 1})
    assert drawn != [body["temperature"] for body in bodies(other, 300)]


def test_weights_are_drawn_by_each_sample() -> None:
    sampling = Sampling.model_validate({"thinking": {"values": [True, False], "weights": [3, 1]}, "n": 2})
    drawn = [body["chat_template_kwargs"]["enable_thinking"] for body in bodies(sampling, 500)]
    assert 700 < sum(drawn) < 800
    assert any(one != two for one, two in zip(drawn[::2], drawn[1::2], strict=True))


def test_settings_by_source() -> None:
    sampling = Sampling.model_validate(
        {
            "thinking": True,
            "max_tokens": 100,
            "template": {"preserve_thinking": True},
            "by_source": {
                "b": {"thinking": None, "max_tokens": 7, "reasoning_effort": "low", "tool_choice": "required"},
                "c": {"tool_choice": "f", "template": {}},
            },
        }
    )
    (a,), (b,), (c,) = (bodies(sampling, 1, source=source) for source in "abc")
    kwargs = {"preserve_thinking": True}
    assert a["chat_template_kwargs"] == kwargs | {"enable_thinking": True} and a["max_tokens"] == 100
    assert "tool_choice" not in a and "reasoning_effort" not in a
    assert (b["chat_template_kwargs"], b["max_tokens"], b["reasoning_effort"]) == (kwargs, 7, "low")
    assert b["tool_choice"] == "required" and c["chat_template_kwargs"] == {"enable_thinking": True}
    assert c["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    (without,) = bodies(sampling, 1, source="b", tools=None)
    assert "tool_choice" not in without and "tools" not in without


# --- marks ---

TAGS = {"<think>": 7, "</think>": 8, "<tool_call>": 9}
ON = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.mark.parametrize(
    ("content", "reasoning", "prompt_ids", "ids", "finish", "found"),
    [
        ("A", "Hm", [1], [7, 2, 8, 3], "stop", []),
        ("A", "Hm", [1, 7], [2, 8, 3], "stop", []),  # the template opened
        ("A", "Hm", [1, 7, 8], [2, 8, 3], "stop", ["unopened_thinking"]),  # it closed too
        ("A", "Hm", [1], [2, 8, 3], "stop", ["unopened_thinking"]),
        ("", "Hm", [1], [7, 2], "stop", ["unclosed_thinking"]),
        ("", "Hm", [1], [7, 2], "length", []),  # its class says it
        ("", "Hm", [1], [2], "stop", ["unclosed_thinking", "unopened_thinking"]),
        ("A", "", [1], [7, 8, 3], "stop", ["empty_thinking"]),
        ("A", "\n", [1, 7], [8, 3], "stop", ["empty_thinking"]),
        ("A", "", [1, 7, 8], [3], "stop", ["no_thinking"]),
        ("<think>Hm</think>A", "", [1], [7, 2, 8, 3], "stop", ["leaked_thinking"]),
        ("B</think>A", "Hm", [1], [7, 2, 8, 3, 8, 3], "stop", ["leaked_thinking"]),
        ("A", "Hm <tool_call>{}", [1], [7, 2, 9, 8, 3], "stop", ["call_in_thinking"]),
        ("<tool_call>{}", "Hm", [1], [7, 2, 9], "stop", ["call_in_thinking", "unclosed_thinking", "unread_call"]),
        ("<tool_call>{", "Hm", [1], [7, 2, 8, 9, 3], "stop", ["unread_call"]),
    ],
)
def test_marks_by_ids(
    content: str, reasoning: str, prompt_ids: list[int], ids: list[int], finish: str, found: list[Mark]
) -> None:
    message: Message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    assert marks(message, finish, prompt_ids, ids, TAGS, ON) == found


@pytest.mark.parametrize(
    ("content", "reasoning", "finish", "found"),
    [
        ("A", "Hm", "stop", []),
        ("", "Hm", "stop", ["unclosed_thinking"]),
        ("", "Hm", "length", []),
        ("A", "", "stop", ["no_thinking"]),
        ("A", "\n\n", "stop", ["empty_thinking"]),
        ("<think>\n\n</think>\n\nA", "", "stop", ["empty_thinking", "leaked_thinking"]),
        ("<think>Hm</think>A", "", "stop", ["leaked_thinking"]),
        ("<think>Hm", "", "stop", ["leaked_thinking", "unclosed_thinking"]),
        ("Hm</think>A", "", "stop", ["leaked_thinking", "unopened_thinking"]),
        ("[TOOL_CALLS][", "Hm", "stop", ["unread_call"]),
        ("A", "so <tool_call>", "stop", ["call_in_thinking"]),
    ],
)
def test_marks_by_text_where_no_ids_are_known(content: str, reasoning: str, finish: str, found: list[Mark]) -> None:
    message: Message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    assert marks(message, finish, [1], [2], {}, ON) == found


def test_a_call_after_the_thoughts_is_no_mark() -> None:
    calls: Any = [call("a", "f")]
    message: Message = {"role": "assistant", "content": "", "reasoning_content": "Hm", "tool_calls": calls}
    assert marks(message, "tool_calls", [1], [7, 2, 8, 9, 3], TAGS, ON) == []
    assert marks(message, "tool_calls", [1], [7, 2, 9, 3], TAGS, ON) == ["call_in_thinking", "unclosed_thinking"]
    assert marks(message, "tool_calls", [1], [2], {}, ON) == []
    plain: Message = {"role": "assistant", "content": "A"}
    assert marks(plain, "stop", [1], [3], TAGS, {}) == []

"""The exact requests of made-up conversations (conversation_cases.py), with a scripted model."""

from typing import Any

import pytest

from tests.unit.conversation_cases import CASES, Case
from workflow_scripts.completions.conversation import Conversation
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.config import Columns, Sampling, Shape
from workflow_scripts.records import Message, Prompt
from workflow_scripts.sources import shapes
from workflow_scripts.sources.readers import SourceRow


def noted(message: Message) -> str:
    if message["role"] == "tool":
        return f"t: {message['tool_call_id']} = {message['content']}"
    text = f"{message['role'][0]}: {message['content']}"
    if "reasoning_content" in message:
        text += f" | {message['reasoning_content']}"
    for call in message.get("tool_calls", ()):
        text += f" ! {call['id']} {call['function']['name']} {call['function']['arguments']}"
    return text


def reply_of(note: str, calls_before: int) -> dict[str, Any]:
    text, *called = note.split("! ")
    content, _, reasoning = (part.strip() for part in text.partition("|"))
    calls = []
    for number, one in enumerate(called, calls_before):
        name, _, arguments = one.strip().partition(" ")
        calls.append({"id": f"n{number}", "index": 0, "function": {"name": name, "arguments": arguments}})
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning or None,
        "tool_calls": calls or None,
    }
    choice = {
        "message": message,
        "finish_reason": "tool_calls" if calls else "stop",
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3],
    }
    return {"id": "r", "choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}


def prompt_of(shape: Shape, row: Any) -> Prompt:
    """The prompt under `turns: all` that a source makes of a row, or of a tree's rows."""
    names = shapes.column_names(shape, Columns())
    rows = [SourceRow("x", number, number, one) for number, one in enumerate(row if isinstance(row, list) else [row])]
    whole: Any = next(iter(shapes.gather(shape, names, rows))).row
    made = shapes.converter(shape, names)(whole)
    return {
        "prompt_id": "0" * 64,
        "first_id": "0" * 64,
        "source": "s",
        "source_id": "1",
        "source_row": 0,
        "messages": made.messages,
        "tools": made.tools,
        "meta": {},
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_requests_of_a_conversation(case: Case) -> None:
    prompt = prompt_of(case.shape, case.row)
    conversation = Conversation(prompt, 0, Sampling())
    sent: list[list[str]] = []
    replies = iter(case.replies)
    calls = 0
    while conversation.ended is None:
        body = conversation.request("m", "r")
        assert [tool["function"]["name"] for tool in body.get("tools", ())] == [*case.tools]
        assert not any("<tools>" in message["content"] for message in body["messages"])
        sent.append([noted(message) for message in body["messages"]])
        reply = reply_of(next(replies), calls)
        calls += len(reply["choices"][0]["message"]["tool_calls"] or ())
        conversation.take(reply, "r", Answerer("s"), 1, 0.0)
    expected: list[list[str]] = []
    for added in case.requests:
        expected.append([*(expected[-1] if expected else []), *added])
    assert sent == expected
    assert conversation.ended == case.ended
    completion = conversation.completion()
    assert len(completion["turns"]) == len(case.requests)
    assert [noted(message) for message in completion["messages"][:-1]] == expected[-1]
    assert {mark for turn in completion["turns"] for mark in turn["marks"]} == case.marks


def test_there_are_enough_of_them() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 30

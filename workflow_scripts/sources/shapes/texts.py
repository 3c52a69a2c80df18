"""Shapes that hold texts without roles: one question and one answer, or strings that take turns.

A recorded answer is in no prompt's id, so one that can't be read loses no prompt: the conversation has none.
"""

from collections.abc import Mapping
from typing import Any

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes.turns import Conversation, Turn, build, text
from workflow_scripts.sources.tools import parse


def one_answer(values: Mapping[str, Any]) -> Conversation:
    """A question, below it an input where there is one, and the answer."""
    answer = _answer(values.get("response"))
    return _unnamed([_question(values), *([{"role": "assistant", "content": answer}] if answer else [])], values)


def _answer(value: Any) -> str:
    """The text of an answer: a number is written out; nothing for what is no text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value) if value == value else ""  # not a number: how tables write that there is none
    try:
        return text(value)
    except Rejected:
        return ""


def one_call(values: Mapping[str, Any]) -> Conversation:
    """A question, and the calls that answer it."""
    calls = values.get("response")
    turns = [_question(values)]
    if isinstance(calls, str) and calls.strip() not in ("", "[]", "null"):
        turns.append({"role": "function_call", "content": calls})
    elif calls and not isinstance(calls, str):
        turns.append({"role": "assistant", "content": "", "tool_calls": calls})
    return _unnamed(turns, values)


def _question(values: Mapping[str, Any]) -> Turn:
    parts = [part for part in (text(values.get("prompt")), text(values.get("input"))) if part.strip()]
    if not parts:
        raise Rejected("empty_prompt")
    return {"role": "user", "content": "\n\n".join(parts)}


def alternating(values: Mapping[str, Any]) -> Conversation:
    """A list of strings: what the user says, what the assistant answers, and so on."""
    strings = values["prompt"]
    if isinstance(strings, str):
        strings = parse(strings, "bad_messages")
    if not isinstance(strings, list):
        raise Rejected("bad_messages", f"the turns are {type(strings).__name__}, not a list")
    for number, said in enumerate(strings):
        if not isinstance(said, str):
            raise Rejected("bad_messages", f"turn {number} is {type(said).__name__}, not a string")
    return _unnamed(
        [{"role": ("user", "assistant")[number % 2], "content": said} for number, said in enumerate(strings)], values
    )


def _unnamed(turns: list[Turn], values: Mapping[str, Any]) -> Conversation:
    conversation = build(turns, "role", "content", system=values.get("system"), tools=values.get("tools"))
    conversation.roles = []  # the row names none
    return conversation

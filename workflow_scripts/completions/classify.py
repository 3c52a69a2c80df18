"""The class of a turn: how it ended, told from the server's reply alone."""

from typing import Any

from workflow_scripts.records import Message, TurnClass

REPETITION_TOKENS = 128
REPETITION_PERIOD = 32


def turn_class(message: Message, finish_reason: str, response_token_ids: list[int]) -> TurnClass:
    """The one class of a turn, the first that fits in the records' order."""
    if finish_reason == "abort":
        return "aborted"
    if message.get("tool_calls"):
        return "tool_call"
    if finish_reason == "length":
        return "cut_in_thinking" if _still_thinking(message) else "cut_in_answer"
    if repeats(response_token_ids):
        return "repetition"
    if not message["content"].strip():
        return "empty"
    return "complete"


def _still_thinking(message: Message) -> bool:
    """Whether a turn cut by the cap was cut before its answer began.

    With a reasoning parser an unclosed thought is all in `reasoning_content` and `content` is empty; without one
    it stands in `content` after its opening tag.
    """
    content = message["content"]
    if message.get("reasoning_content"):
        return not content.strip()
    return "<think>" in content and "</think>" not in content


def repeats(ids: list[int]) -> bool:
    """Whether the last 128 tokens are one pattern of at most 32 tokens, over and over.

    Cheap (at most 32 comparisons of slices) and blind to anything but a loop at the very end; the end token that
    closes a turn is left out.
    """
    tail = ids[-REPETITION_TOKENS - 1 : -1]
    if len(tail) < REPETITION_TOKENS or tail.count(tail[-1]) < REPETITION_TOKENS // REPETITION_PERIOD:
        return False  # in a loop the last token comes once a period
    return any(tail[period:] == tail[:-period] for period in range(1, REPETITION_PERIOD + 1))


def counts(classes: list[Any]) -> dict[str, int]:
    """How often each class occurs, in alphabetical order."""
    return {name: classes.count(name) for name in sorted(set(classes))}

"""What a server replies, read: a message as it is stored, and its turn with the exact token ids."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from workflow_scripts.completions.classify import turn_class
from workflow_scripts.completions.decoding import Decode, says
from workflow_scripts.completions.faults import Fault
from workflow_scripts.completions.marks import marks
from workflow_scripts.records import Message, ToolCall, Turn

INT32 = 2**31  # what stored ids must fit in


class Answerer(NamedTuple):
    """Who answers. Token ids are below `vocabulary`, if that is known; `tags` are the ids of marks.TAGS.

    `decode` is by the model's tokenizer; None where that is not here.
    """

    name: str
    vocabulary: int | None = None
    tags: Mapping[str, int] = {}
    decode: Decode | None = None
    honours_seeds: bool = False


def read(
    reply: Any, rid: str, sampling: dict[str, Any], who: Answerer, attempts: int, seconds: float
) -> tuple[Message, Turn]:
    """The message and the turn of a reply. Raises Fault if the reply is none to this request, or was aborted."""
    try:
        if reply["id"] != rid:
            raise Fault("bad_reply", f"the reply is to another request ({reply['id']})")
        choice = reply["choices"][0]
        message = _message(choice["message"])
        usage = reply["usage"]
        below = INT32 if who.vocabulary is None else who.vocabulary
        prompt_ids, response_ids = _ids(choice["prompt_token_ids"], below), _ids(choice["response_token_ids"], below)
        finish_reason = choice["finish_reason"]
        if not isinstance(finish_reason, str) or not prompt_ids:
            raise TypeError("no finish reason, or no prompt ids")
        odd = marks(message, finish_reason, prompt_ids, response_ids, who.tags, sampling)
        if who.decode is not None and not says(who.decode(response_ids), message):
            odd = sorted([*odd, "other_text"])
        turn: Turn = {
            "finish_reason": finish_reason,
            "class": turn_class(message, finish_reason, response_ids),
            "marks": odd,
            "prompt_token_ids": prompt_ids,
            "response_token_ids": response_ids,
            "usage": {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": usage["completion_tokens"]},
            "sampling": sampling,
            "seed_honoured": who.honours_seeds,
            "server": who.name,
            "attempts": attempts,
            "seconds": round(seconds, 3),
        }
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Fault("bad_reply", f"the reply is no chat completion with token ids ({error!r})") from error
    if turn["class"] == "aborted":
        raise Fault("aborted", "the server aborted the request")
    if len(prompt_ids) != usage["prompt_tokens"] or len(response_ids) != usage["completion_tokens"]:
        raise Fault("bad_reply", "the reply's token ids are not as many as its usage says")
    return message, turn


def _ids(value: Any, below: int) -> list[int]:
    """Token ids as they are stored and trained on: TypeError for anything that is none."""
    if not isinstance(value, list) or list(map(type, value)).count(int) != len(value):
        raise TypeError("token ids that are none")
    if value and not (min(value) >= 0 and max(value) < below):
        raise TypeError("token ids out of the vocabulary")
    return value


def _message(said: dict[str, Any]) -> Message:
    """The assistant turn as it is stored: content is text, the rest only where there is any."""
    message: Message = {"role": "assistant", "content": _text(said.get("content") or "")}
    if said.get("reasoning_content"):
        message["reasoning_content"] = _text(said["reasoning_content"])
    if said.get("tool_calls"):
        message["tool_calls"] = [_call(call["id"], call["function"]) for call in said["tool_calls"]]
        if len({call["id"] for call in message["tool_calls"]}) < len(message["tool_calls"]):
            raise TypeError("two calls of one id")
    return message


def _call(call_id: Any, function: dict[str, Any]) -> ToolCall:
    """No arguments at all are an empty object's: servers refuse histories where they are no JSON."""
    arguments = _text(function["arguments"] or "{}")
    return {
        "id": _text(call_id),
        "type": "function",
        "function": {"name": _text(function["name"]), "arguments": arguments},
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("what should be text is none")
    return value

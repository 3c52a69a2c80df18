"""What a server replies, read: a message as it is stored, and its turn with the exact token ids."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from workflow_scripts.completions.classify import turn_class
from workflow_scripts.completions.faults import Fault
from workflow_scripts.completions.marks import marks
from workflow_scripts.records import Message, Turn

INT32 = 2**31  # what stored ids must fit in


class Answerer(NamedTuple):
    """Who answers. Token ids are below `vocabulary`, if that is known; `tags` are the ids of marks.TAGS."""

    name: str
    vocabulary: int | None = None
    tags: Mapping[str, int] = {}
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
        turn: Turn = {
            "finish_reason": finish_reason,
            "class": turn_class(message, finish_reason, response_ids),
            "marks": marks(message, finish_reason, prompt_ids, response_ids, who.tags, sampling),
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
    message: Message = {"role": "assistant", "content": said.get("content") or ""}
    if said.get("reasoning_content"):
        message["reasoning_content"] = said["reasoning_content"]
    if said.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
            }
            for call in said["tool_calls"]
        ]
    return message

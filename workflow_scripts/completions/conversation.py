"""The turn policy: which request a prompt becomes, and how a reply becomes its completion (`turns: first`)."""

from typing import Any, cast

from workflow_scripts.completions.classify import turn_class
from workflow_scripts.completions.faults import Fault
from workflow_scripts.config import Sampling
from workflow_scripts.records import Completion, Message, Prompt, Turn

INT32 = 2**31  # what stored ids must fit in


def request_body(prompt: Prompt, sample: int, sampling: Sampling, model: str, rid: str) -> dict[str, Any]:
    """The body of POST /v1/chat/completions; with `return_token_ids` SGLang adds the exact ids to the choice.

    Each sample has a seed of its own: where a server honours seeds, equal ones would give equal answers.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": prompt["messages"],
        "rid": rid,
        "return_token_ids": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed + sample,
    }
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k
    if sampling.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": sampling.thinking}
    if prompt["tools"]:
        body["tools"] = prompt["tools"]
    return body


def complete(
    prompt: Prompt,
    sample: int,
    reply: Any,
    body: dict[str, Any],
    *,
    vocabulary: int | None,
    server: str,
    attempts: int,
    seconds: float,
) -> Completion:
    """The completion that a reply makes of a prompt. Raises Fault if the reply is none to this request.

    Token ids must be below `vocabulary`, where that is known.
    """
    try:
        if reply["id"] != body["rid"]:
            raise Fault("bad_reply", f"the reply is to another request ({reply['id']})")
        choice = reply["choices"][0]
        message = _message(choice["message"])
        usage = reply["usage"]
        below = INT32 if vocabulary is None else vocabulary
        prompt_ids, response_ids = _ids(choice["prompt_token_ids"], below), _ids(choice["response_token_ids"], below)
        finish_reason = choice["finish_reason"]
        if not isinstance(finish_reason, str) or not prompt_ids:
            raise TypeError("no finish reason, or no prompt ids")
        kind = turn_class(message, finish_reason, response_ids)
        turn: Turn = {
            "finish_reason": finish_reason,
            "class": kind,
            "prompt_token_ids": prompt_ids,
            "response_token_ids": response_ids,
            "usage": {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": usage["completion_tokens"]},
            "sampling": {key: body[key] for key in body if key not in ("model", "messages", "tools", "rid")},
            "server": server,
            "attempts": attempts,
            "seconds": round(seconds, 3),
        }
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Fault("bad_reply", f"the reply is no chat completion with token ids ({error!r})") from error
    if kind == "aborted":
        raise Fault("aborted", "the server aborted the request")
    if len(prompt_ids) != usage["prompt_tokens"] or len(response_ids) != usage["completion_tokens"]:
        raise Fault("bad_reply", "the reply's token ids are not as many as its usage says")
    return cast(Completion, {**prompt, "messages": [*prompt["messages"], message], "sample": sample, "turns": [turn]})


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

"""A conversation as the server renders it, without the server.

SGLang 0.5.23 hands messages and tools to the chat template as its request types dump them: tools as declarations.py has
it; a call's arguments as an object; of a user's message, only role and content.
"""

from typing import TYPE_CHECKING, Any

import orjson

from workflow_scripts.prompts.declarations import as_shown
from workflow_scripts.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORM = 2  # another number where a prompt is rendered otherwise than before: counts are kept by it

Tools = list[dict[str, Any]] | None


class Refused(Exception):
    """The template refuses the conversation; its own words."""


def render(
    tokenizer: "PreTrainedTokenizerBase",
    messages: list[Message],
    tools: Tools,
    template_kwargs: dict[str, Any],
    *,
    opening: bool = True,
) -> str:
    """The text of the prompt, with the `opening` of an answer. Refused if the template takes it in no form.

    Some templates want tools without their OpenAI wrapper; SGLang tries that second, and so is it here.
    """
    turns: Any = [_message(message) for message in messages]
    dumped = [as_shown(tool) for tool in tools] if tools else None
    ways = [dumped, [tool["function"] for tool in dumped]] if dumped else [None]
    why = ""
    for declared in ways:
        try:
            text = tokenizer.apply_chat_template(
                turns, tools=declared, add_generation_prompt=opening, tokenize=False, **template_kwargs
            )
        except Exception as error:  # templates are programs of others: what they raise is a refusal
            why = str(error)
            continue
        if isinstance(text, str):
            return text
    raise Refused(why)


def variables(sampling: dict[str, Any]) -> dict[str, Any]:
    """The template's variables, as the sampling part of a request sets them."""
    effort = {"reasoning_effort": sampling["reasoning_effort"]} if "reasoning_effort" in sampling else {}
    return {**effort, **sampling.get("chat_template_kwargs", {})}


def shown(tools: Tools, sampling: dict[str, Any]) -> Tools:
    """Tools as SGLang shows them: none where none may be called, only the named one where one is."""
    choice = sampling.get("tool_choice")
    if tools is None or choice == "none":
        return None
    if isinstance(choice, dict):
        return [tool for tool in tools if tool["function"]["name"] == choice["function"]["name"]]
    return tools


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """The text's ids; special tokens are the template's to write."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _message(message: Message) -> dict[str, Any]:
    if message["role"] == "user":
        return {"role": "user", "content": message["content"]}
    calls = message.get("tool_calls")
    if not calls:
        return {**message}
    return {**message, "tool_calls": [call | {"function": _called(call["function"])} for call in calls]}


def _called(function: Any) -> dict[str, Any]:
    try:
        arguments = orjson.loads(function["arguments"])
    except orjson.JSONDecodeError as error:
        raise Refused("Assistant tool call function.arguments must be valid JSON.") from error
    if not isinstance(arguments, dict):
        raise Refused("Assistant tool call function.arguments must be a JSON object.")
    return {"name": function["name"], "arguments": arguments}

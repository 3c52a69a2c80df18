"""What makes two prompts the same.

The ids are a stable contract: completions, exclusions and published objects are keyed by them. An id is the hex sha256
of one line of JSON, UTF-8, no spaces, keys sorted at every level, as orjson writes it with OPT_SORT_KEYS:

    {"messages":[...],"system":"..."|null,"tools":[...]|null}

`system` is the text of the system message, which always stands first. `tools` are as normalized, null for none. Each
other message is {"content":"...","role":"user"|"tool"}, with "name" where it has one; a tool result's call id is left
out, for it names a call of the recorded answer. `first_id` takes the messages before the first assistant turn.
`all_id` takes every message but the assistant's, with null in the place of each run of assistant turns that others
follow: [a question, null, a question] is another prompt than [a question, a question]. So neither depends on what was
recorded as an answer, and they are equal for a conversation of one question.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson

from workflow_scripts.records import Message

Tools = list[dict[str, Any]] | None
Turns = Literal["first", "all"]


def prompt_side(messages: list[Message]) -> list[Message]:
    """The messages before the first assistant turn: what is sent under `turns: first`."""
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            return messages[:index]
    return messages


class Ids(NamedTuple):
    """The prompt's id under `turns: first` and under `turns: all`, and the hex sha256 of its `prompt_text`.

    `characters` are those of the messages that `first_id` is made of.
    """

    first_id: str
    all_id: str
    dedupe_key: str
    characters: int


def identify(messages: list[Message], tools: Tools) -> Ids:
    """What a conversation's prompt is known by."""
    side = prompt_side(messages)
    first_id = all_id = _hash(side, tools)
    if len(messages) > len(side) + 1:
        for message in messages[len(side) :]:
            if message["role"] != "assistant":
                all_id = _hash(messages, tools)
                break
    characters = 0
    for message in side:
        characters += len(message["content"])
    return Ids(first_id, all_id, hashlib.sha256(_text(side, tools).encode()).hexdigest(), characters)


_KEYS: Final = ("role", "content", "name")


def _hash(messages: list[Message], tools: Tools) -> str:
    system = None
    canonical: list[Any] = []
    for message in messages:
        if message["role"] == "system":
            system = message["content"]
        elif message["role"] != "assistant":
            bare = len(message) == 2  # role and content, which every message has
            canonical.append(message if bare else {key: message[key] for key in _KEYS if key in message})
        elif canonical and canonical[-1] is not None:
            canonical.append(None)
    if canonical and canonical[-1] is None:
        canonical.pop()
    value = {"system": system, "tools": tools or None, "messages": canonical}
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def asked(messages: list[Message], turns: Turns) -> list[Message]:
    """What a conversation asks the model: its prompt side, or under `all` every message but the assistant's."""
    if turns == "first":
        return prompt_side(messages)
    return [message for message in messages if message["role"] != "assistant"]


def prompt_text(messages: list[Message], tools: Tools) -> str:
    """What exact deduplication compares: the prompt side's text, where case, spacing and Unicode form don't count.

    One line per message, `role: text` or `role "name": text`, the text as `plain` makes it; then the tools, if any.
    """
    return _text(prompt_side(messages), tools)


def whole_key(messages: list[Message], tools: Tools) -> str:
    """The dedupe key under `turns: all`: the hex sha256 of the text of all that `all_id` is made of.

    A run of assistant turns that others follow is an empty line. Equal all_ids have equal keys.
    """
    whole: list[Message | None] = []
    for message in messages:
        if message["role"] != "assistant":
            whole.append(message)
        elif whole and whole[-1] is not None:
            whole.append(None)
    if whole and whole[-1] is None:
        whole.pop()
    return hashlib.sha256(_text(whole, tools).encode()).hexdigest()


def _text(side: Sequence[Message | None], tools: Tools) -> str:
    lines = [
        "" if message is None else f"{message['role']}{_name(message)}: {plain(message['content'])}" for message in side
    ]
    if tools:
        lines.append(f"tools: {plain_tools(tools)}")
    return "\n".join(lines)


def _name(message: Message) -> str:
    return f" {orjson.dumps(message['name']).decode()}" if "name" in message else ""


def plain_tools(tools: Tools) -> str:
    """Tools as one plain text."""
    return plain(orjson.dumps(_plain_strings(tools), option=orjson.OPT_SORT_KEYS).decode())


def _plain_strings(value: Any) -> Any:
    """JSON whose texts are plain: as JSON, a line's end in one is no white space any more, but a backslash and an n."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain_strings(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain_strings(each) for key, each in value.items()}
    return value


def plain(text: str) -> str:
    """A text in NFC, case-folded, its white space collapsed."""
    if text.isascii():  # which is in NFC, and for which folding is lowering
        return " ".join(text.lower().split())
    # Case folding can undo a composition, so NFC comes again after it (Unicode, chapter 3.13).
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())

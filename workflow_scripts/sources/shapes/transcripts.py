"""Whole conversations in one string, as glaive-function-calling-v2 writes them.

`chat` is turns of `USER: `, `ASSISTANT: ` and `FUNCTION RESPONSE: `, parted by three line breaks; assistant turns end
with ` <|endoftext|>`. A role's word counts only there, so that it may stand inside a message too. `system` is a text
after `SYSTEM: `. https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2
"""

import re
from collections.abc import Mapping
from typing import Any

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes.turns import Conversation, build, text

_GAP = "\n\n\n"
_TURN = re.compile(rf"(?:\A\s*|{_GAP})(USER|ASSISTANT|FUNCTION RESPONSE): ?")
_END = "<|endoftext|>"


def transcript(values: Mapping[str, Any]) -> Conversation:
    """A system text and a chat, both strings."""
    chat = values["prompt"]
    if not isinstance(chat, str):
        raise Rejected("bad_messages", f"the chat is {type(chat).__name__}, not a string")
    _, *parts = _TURN.split(chat.removesuffix(_GAP))
    if not parts or _TURN.match(chat) is None:
        raise Rejected("bad_messages", "the chat does not begin with USER: or ASSISTANT:")
    turns = [
        {"role": role, "content": _spoken(role, content)} for role, content in zip(parts[::2], parts[1::2], strict=True)
    ]
    system = text(values.get("system")).removeprefix("SYSTEM:").strip()
    return build(turns, "role", "content", system=system, tools=values.get("tools"))


def is_transcript(value: str) -> bool:
    """Whether a text begins like a transcript."""
    return _TURN.match(value) is not None


def _spoken(role: str, content: str) -> str:
    ended = content.rstrip()
    return ended.removesuffix(_END).rstrip() if role == "ASSISTANT" and ended.endswith(_END) else content

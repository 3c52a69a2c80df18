"""What is odd about a turn, beside its class: told from the reply's texts, and from its ids where tags have their own.

Many models have a token for each tag (`<think>` is 151667 for Qwen3). Where the server's tokenizer is at hand they tell
what a reasoning parser hides: SGLang's takes off the opening tag, and gives no sign whether one was there.
"""

from collections.abc import Mapping
from typing import Any

from workflow_scripts.config.generation import THINKING_KWARG
from workflow_scripts.records import Mark, Message

THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
CALLS = ("<tool_call>", "<|tool_call>", "<|tool_call_begin|>", "[TOOL_CALLS]", "<function=")
TAGS = frozenset([*(tag for pair in THINKING for tag in pair), *CALLS])
OPENING = frozenset(opening for opening, _ in THINKING)
CLOSING = frozenset(closing for _, closing in THINKING)
PROMPT_TAIL = 32  # tokens at the prompt's end in which a template opens or closes the thoughts


def marks(
    message: Message,
    finish_reason: str,
    prompt_ids: list[int],
    response_ids: list[int],
    tags: Mapping[str, int],
    settings: Mapping[str, Any],
) -> list[Mark]:
    """The marks of a turn, in alphabetical order. `tags` are the ids of TAGS, as far as they are single tokens."""
    found: set[Mark] = set()
    content, reasoning = message["content"], message.get("reasoning_content", "")
    in_content = [tag for tag in OPENING | CLOSING if tag in content]
    if in_content:
        found.add("leaked_thinking")
    if any(tag in reasoning for tag in CALLS):
        found.add("call_in_thinking")
    if not message.get("tool_calls") and any(tag in content for tag in CALLS):
        found.add("unread_call")
    if any(tag in tags for tag in OPENING):
        opened, closed, called = _by_ids(prompt_ids, response_ids, tags)
        if called:
            found.add("call_in_thinking")
    else:
        opened = any(tag in content for tag in OPENING) or bool(reasoning)
        closed = any(tag in content for tag in CLOSING)
        if reasoning:  # a parser found its end, or gives all to the thoughts
            closed = bool(content) or bool(message.get("tool_calls"))
    if (closed or reasoning) and not opened:
        found.add("unopened_thinking")
    if (opened or reasoning) and not closed and finish_reason != "length":
        found.add("unclosed_thinking")
    if opened and closed and not (reasoning.strip() or _thoughts(content)):
        found.add("empty_thinking")
    asked = settings.get("chat_template_kwargs", {}).get(THINKING_KWARG)
    if asked and not opened and not closed and not reasoning:
        found.add("no_thinking")
    return sorted(found)


def _by_ids(prompt_ids: list[int], response_ids: list[int], tags: Mapping[str, int]) -> tuple[bool, bool, bool]:
    """Whether thoughts were opened (in the prompt's last tokens, or by the model), closed, and a call made in them."""
    opening, closing, calls = ({tags[tag] for tag in kind if tag in tags} for kind in (OPENING, CLOSING, CALLS))
    thinking = False
    for token in prompt_ids[-PROMPT_TAIL:]:
        if token in opening:
            thinking = True
        elif token in closing:
            thinking = False
    opened, closed, called = thinking, False, False
    known = opening | closing | calls
    for token in () if known.isdisjoint(response_ids) else [token for token in response_ids if token in known]:
        if token in opening:
            opened = thinking = True
        elif token in closing:
            closed, thinking = True, False
        elif thinking:
            called = True
    return opened, closed, called


def _thoughts(content: str) -> str:
    """What stands between tags that no parser took out."""
    for opening, closing in THINKING:
        if closing in content:
            return content.partition(closing)[0].rpartition(opening)[2].strip()
    return ""

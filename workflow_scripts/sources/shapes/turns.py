"""Turns to a conversation, by the rules that hold for every shape.

What a row must have to be a prompt:
- a user turn with text. Turns before the first one are dropped, but for a system message;
- no user turn without text, anywhere;
- a system message, if any, before all other turns that are kept; a blank one counts as none;
- text only: content is a string, null (no text), or a list of text parts, which are joined;
- roles of the table below only, letter by letter.
Turns need not alternate. What users said is kept to the character.

Tools come from their column or, where that has none, from the system text; there their declaration is taken out with
the words of its call protocol (tool_declarations.py), so that tools never stand in a prompt twice.

Recorded assistant turns and tool results stay. A leading <think> block becomes `reasoning_content`. Calls and results
that are written as text are read only where the row declares tools. Recorded answers are in no prompt's id, so calls
that can't be read lose no prompt: the turn keeps its text as plain content, and is counted. A result without an id gets
the id of the first call of the turn before that has no result yet, of the same name where the result has one.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from workflow_scripts.records import Message, ToolCall
from workflow_scripts.sources import tool_declarations, tool_text
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tools import read_calls, read_tools

Turn = dict[str, Any]

# A `call` turn is an assistant's whose content is its tool calls.
ROLES: dict[str, Literal["system", "user", "assistant", "tool", "call"]] = {
    **dict.fromkeys(("user", "human", "prompter", "USER"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model", "ASSISTANT"), "assistant"),
    **dict.fromkeys(("system", "SYSTEM"), "system"),
    **dict.fromkeys(("tool", "observation", "function-response", "FUNCTION RESPONSE", "function"), "tool"),
    **dict.fromkeys(("function_call", "function-call"), "call"),
}
_ROLES_OF_TEXT: dict[str, Literal["user", "assistant"]] = {
    name: role for name, role in ROLES.items() if role == "user" or role == "assistant"
}
_CALL_KEYS = ("tool_calls", "tool_calls_json", "function_call")


@dataclass(slots=True)
class Conversation:
    """What a row holds: the turns, the tools, the names that the row gave its roles, and turns with unread calls."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    roles: list[str] = field(default_factory=list)
    malformed_calls: int = 0


def build(turns: list[Any], role_key: str, content_key: str, *, system: Any = None, tools: Any = None) -> Conversation:
    """The conversation of `turns`, objects that name role and content by these keys. Rejected if it is no prompt.

    `system` and `tools` are what columns hold beside the turns.
    """
    if system is None and tools is None and (plain := _plain(turns, role_key, content_key)) is not None:
        return plain
    return _Builder(role_key, content_key, system, tools).build(turns)


def _plain(turns: list[Any], role_key: str, content_key: str) -> Conversation | None:
    """What the builder makes of turns that need none of its rules, as most do, in a fraction of its time.

    These are texts of users and assistants, a user's first, without anything else in them; None for all others.
    """
    messages: list[Message] = []
    roles: list[str] = []
    asks = _ROLES_OF_TEXT
    for turn in turns:
        if type(turn) is not dict or len(turn) != 2:
            return None
        raw, content = turn.get(role_key), turn.get(content_key)
        if type(raw) is not str or type(content) is not str:
            return None
        role = asks.get(raw)
        if role == "user":
            if not content or content.isspace():
                return None
        elif role is None or not messages or content[:1] == "<" or content[:1].isspace():  # <think>, perhaps
            return None
        messages.append({"role": role, "content": content})
        roles.append(raw)
    return Conversation(messages, None, roles) if messages else None


def text(content: Any) -> str:
    """The text of a content: a string as it is, nothing for null, text parts joined; Rejected(`not_text`) else."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise Rejected("not_text", f"content is {type(content).__name__}")
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        raise Rejected("not_text", f"a part of the content is {type(part).__name__}")
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise Rejected("not_text", f"a part of the content is of type {part.get('type')!r}")
    return str(part["text"])


class _Builder:
    """A conversation in the making, turn by turn."""

    def __init__(self, role_key: str, content_key: str, system: Any, tools: Any) -> None:
        self._role_key = role_key
        self._content_key = content_key
        self._messages: list[Message] = []  # without the system message
        self._tools = read_tools(tools)
        self._column_system = text(system)
        self._system = ""
        self._instructed = False  # a system turn with text is there
        self._started = False  # the first user turn is there
        self._calls = 0
        self._pending: list[ToolCall] = []
        self._malformed = 0
        if self._column_system.strip():
            self._instruct(self._column_system)

    def build(self, turns: list[Any]) -> Conversation:
        roles = [self._add(turn, number) for number, turn in enumerate(turns)]
        if not self._started:
            raise Rejected("no_user_turn")
        instructions: list[Message] = [{"role": "system", "content": self._system}] if self._system.strip() else []
        return Conversation([*instructions, *self._messages], self._tools, roles, self._malformed)

    def _add(self, turn: Any, number: int) -> str:
        if not isinstance(turn, dict):
            raise Rejected("bad_messages", f"turn {number} is {type(turn).__name__}, not an object")
        raw = turn.get(self._role_key)
        if not isinstance(raw, str):
            raise Rejected("bad_messages", f"turn {number} has no text in `{self._role_key}`; it has {_keys(turn)}")
        role = ROLES.get(raw)
        if role is None:
            raise Rejected("unknown_role", raw)
        if role == "system":
            self._system_turn(turn, number)
        elif role == "user":
            self._user(turn, number)
        elif self._started and role == "tool":
            self._tool(turn, number)
        elif self._started:
            self._assistant(turn, is_call=role == "call")
        return raw

    def _text(self, turn: Turn, number: int) -> str:
        if self._content_key not in turn:
            raise Rejected("bad_messages", f"turn {number} has no `{self._content_key}`; it has {_keys(turn)}")
        return text(turn[self._content_key])

    def _system_turn(self, turn: Turn, number: int) -> None:
        content = self._text(turn, number)
        if self._started or self._instructed:
            raise Rejected("system_not_first", f"turn {number}")
        if not content.strip():
            return
        self._instructed = True
        if not self._column_system.strip():
            self._instruct(content)
        elif content != self._column_system:
            raise Rejected("two_systems", "a column and the first turn hold different system prompts")

    def _instruct(self, content: str) -> None:
        """Take the tools out of a system text; the rest is the system message."""
        self._system = content
        declared = tool_declarations.declared(content)
        if declared is not None:
            self._system = declared.rest
            if self._tools is None:
                self._tools = read_tools(declared.tools())

    def _user(self, turn: Turn, number: int) -> None:
        content = self._text(turn, number)
        if not content or content.isspace():
            raise Rejected("empty_prompt", f"turn {number}")
        self._started = True
        self._append({"role": "user", "content": content}, turn)

    def _assistant(self, turn: Turn, is_call: bool) -> None:
        content = text(turn.get(self._content_key))
        reasoning = turn.get("reasoning_content")
        if not isinstance(reasoning, str) or not reasoning:
            reasoning, content = tool_text.split_thinking(content)
        calls: list[ToolCall] = []
        try:
            calls, content = self._read_calls(turn, content, is_call)
        except Rejected:
            self._malformed += 1
        message: Message = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        self._calls += len(calls)
        self._pending = list(calls)
        self._append(message, turn)

    def _read_calls(self, turn: Turn, content: str, is_call: bool) -> tuple[list[ToolCall], str]:
        """The calls of an assistant turn, and the content without them; Rejected if they can't be read."""
        if is_call:
            calls = read_calls(content, self._calls)
            if not calls:
                raise Rejected("bad_tool_call", "no call")
            return calls, ""
        for key in _CALL_KEYS:
            if turn.get(key) is not None:
                calls = read_calls(turn[key], self._calls)
                if calls:
                    return calls, content
        if not self._tools:
            return [], content
        found, rest = tool_text.calls(content, [tool["function"]["name"] for tool in self._tools])
        return read_calls(found, self._calls), rest

    def _tool(self, turn: Turn, number: int) -> None:
        content, own_id, name = self._text(turn, number), turn.get("tool_call_id"), turn.get("name")
        results = tool_text.results(content) if self._tools else [tool_text.Result(None, content)]
        for result in results:
            message: Message = {"role": "tool", "content": result.content}
            if isinstance(own_id, str) and own_id and len(results) == 1:
                message["tool_call_id"] = own_id
                call = next((call for call in self._pending if call["id"] == own_id), None)
            else:
                called = result.name or name
                named = [call for call in self._pending if call["function"]["name"] == called]
                call = next(iter(named or self._pending), None)
                if call is not None:
                    message["tool_call_id"] = call["id"]
            if call is not None:
                self._pending.remove(call)
            self._append(message, {"name": result.name or name})

    def _append(self, message: Message, turn: Turn) -> None:
        name = turn.get("name")
        if isinstance(name, str) and name:
            message["name"] = name
        self._messages.append(message)


def _keys(turn: Turn) -> str:
    return ", ".join(sorted(map(str, turn))[:10]) or "nothing"

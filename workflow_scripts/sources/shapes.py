"""One row to one conversation, by the shape that the config names.

What a row must have to be a prompt, for every shape:
- a user turn with text. Turns before the first one are dropped, but for a system message;
- no user turn without text, anywhere;
- a system message, if any, before all other turns that are kept; a blank one counts as none;
- text only: content is a string, null (no text), or a list of text parts, which are joined;
- roles of the table below only, letter by letter.
Turns need not alternate. Recorded assistant turns and tool results stay; a result without an id gets the id of the
first call of the turn before that has no result yet, of the same name where the result has one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from workflow_scripts.config import Columns, Shape
from workflow_scripts.records import Message, ToolCall
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tools import parse, read_calls, read_tools

Row = dict[str, Any]
Key = Literal["prompt", "response", "system", "input", "tools", "id"]

# A `call` turn is an assistant's whose content is its tool calls.
ROLES: dict[str, Literal["system", "user", "assistant", "tool", "call"]] = {
    **dict.fromkeys(("user", "human", "prompter", "USER"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model", "ASSISTANT"), "assistant"),
    **dict.fromkeys(("system", "SYSTEM"), "system"),
    **dict.fromkeys(("tool", "observation", "function-response", "FUNCTION RESPONSE", "function"), "tool"),
    **dict.fromkeys(("function_call", "function-call"), "call"),
}

_IDS = ("id", "uuid", "prompt_id", "conversation_id", "conversation_hash", "session_id", "trajectory_id")
_SYSTEMS = ("system", "system_prompt")

# The usual names of each shape's columns: the first that a row has is read. Keys that are not here mean nothing to the
# shape; an empty tuple is read only where the config names the column.
USUAL: dict[Shape, dict[Key, tuple[str, ...]]] = {
    "messages": {
        "prompt": ("messages", "conversations", "conversation"),
        "system": _SYSTEMS,
        "tools": ("tools",),
        "id": _IDS,
    },
    "sharegpt": {
        "prompt": ("conversations", "conversation", "messages"),
        "system": _SYSTEMS,
        "tools": ("tools",),
        "id": _IDS,
    },
    "prompt_response": {
        "prompt": ("prompt", "question", "instruction", "query", "problem"),
        "response": ("response", "answer", "output", "completion", "solution"),
        "system": (),
        "input": (),
        "tools": (),
        "id": _IDS,
    },
    "prompt_response_system": {
        "prompt": ("prompt", "question", "instruction", "query", "problem"),
        "response": ("response", "answer", "output", "completion", "solution"),
        "system": ("system_prompt", "system"),
        "input": (),
        "tools": (),
        "id": _IDS,
    },
    "alpaca": {
        "prompt": ("instruction", "prompt"),
        "input": ("input",),
        "response": ("output", "response"),
        "system": (),
        "tools": (),
        "id": _IDS,
    },
    "tools_query_answers": {
        "prompt": ("query", "question", "prompt"),
        "tools": ("tools",),
        "response": ("answers", "answer"),
        "system": (),
        "id": _IDS,
    },
}
REQUIRED: dict[Shape, tuple[Key, ...]] = {
    "messages": ("prompt",),
    "sharegpt": ("prompt",),
    "prompt_response": ("prompt",),
    "prompt_response_system": ("prompt", "system"),
    "alpaca": ("prompt",),
    "tools_query_answers": ("prompt", "tools"),
}


@dataclass
class Conversation:
    """What a row holds: the turns, the tools, and the names that the row gave its roles."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    roles: list[str] = field(default_factory=list)


def column_names(shape: Shape, columns: Columns) -> dict[Key, tuple[str, ...]]:
    """For each key that means something to the shape, the columns it may be read from, in order."""
    names: dict[Key, tuple[str, ...]] = {}
    for key, usual in USUAL[shape].items():
        named: str | None = getattr(columns, key)
        names[key] = usual if named is None else (named,)
    return names


def converter(shape: Shape, columns: Columns) -> Callable[[Row], Conversation]:
    """The function that makes a row a conversation, or raises Rejected. It raises nothing else, whatever the row."""
    names = column_names(shape, columns)
    convert = _CONVERTERS[shape]

    def read(row: Row) -> Conversation:
        values: dict[Key, Any] = {}
        for key, known in names.items():
            found = next((name for name in known if name in row), None)
            if found is not None:
                values[key] = row[found]
            elif key in REQUIRED[shape]:
                raise Rejected("missing_column", f"no {' or '.join(known)}")
        try:
            return convert(values)
        except RecursionError:
            raise Rejected("nested_too_deep") from None

    return read


def row_id(row: Row, names: tuple[str, ...]) -> str | None:
    """The row's own id as text, from the first of the columns `names` that holds one; None if none does."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
    return None


def _chat(role_key: str, content_key: str) -> Callable[[dict[Key, Any]], Conversation]:
    """The shapes that hold a list of turns, which name role and content by these keys."""

    def convert(values: dict[Key, Any]) -> Conversation:
        turns = values["prompt"]
        if isinstance(turns, str):
            turns = parse(turns, "bad_messages")
        if not isinstance(turns, list):
            raise Rejected("bad_messages", f"the turns are {type(turns).__name__}, not a list")
        conversation = _Builder(role_key, content_key).build(turns)
        conversation.tools = read_tools(values.get("tools"))
        _put_system(conversation, values.get("system"))
        return conversation

    return convert


def _single(values: dict[Key, Any]) -> Conversation:
    """The shapes that hold one question and one answer."""
    conversation = _question(values)
    answer = text(values.get("response"))
    if answer:
        conversation.messages.append({"role": "assistant", "content": answer})
    return conversation


def _tools_query_answers(values: dict[Key, Any]) -> Conversation:
    conversation = _question(values)
    calls = read_calls(values.get("response"), 0)
    if calls:
        conversation.messages.append({"role": "assistant", "content": "", "tool_calls": calls})
    return conversation


def _question(values: dict[Key, Any]) -> Conversation:
    parts = [part for part in (text(values.get("prompt")), text(values.get("input"))) if part.strip()]
    if not parts:
        raise Rejected("empty_prompt")
    conversation = Conversation([{"role": "user", "content": "\n\n".join(parts)}], read_tools(values.get("tools")))
    _put_system(conversation, values.get("system"))
    return conversation


_CONVERTERS: dict[Shape, Callable[[dict[Key, Any]], Conversation]] = {
    "messages": _chat("role", "content"),
    "sharegpt": _chat("from", "value"),
    "prompt_response": _single,
    "prompt_response_system": _single,
    "alpaca": _single,
    "tools_query_answers": _tools_query_answers,
}


def _put_system(conversation: Conversation, value: Any) -> None:
    """Put the system prompt of a column before the turns."""
    system = text(value)
    if not system.strip():
        return
    first = conversation.messages[0]
    if first["role"] != "system":
        conversation.messages.insert(0, {"role": "system", "content": system})
    elif first["content"] != system:
        raise Rejected("two_systems", "a column and the first turn hold different system prompts")


def text(content: Any) -> str:
    """The text of a content: a string as it is, nothing for null, text parts joined; Rejected(`not_text`) else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
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

    def __init__(self, role_key: str, content_key: str) -> None:
        self._role_key = role_key
        self._content_key = content_key
        self._messages: list[Message] = []
        self._started = False  # the first user turn is there
        self._calls = 0
        self._pending: list[ToolCall] = []

    def build(self, turns: list[Any]) -> Conversation:
        """The conversation that `turns` hold."""
        roles = [self._add(turn, number) for number, turn in enumerate(turns)]
        if not self._started:
            raise Rejected("no_user_turn")
        return Conversation(self._messages, None, roles)

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
            self._system(turn, number)
        elif role == "user":
            self._user(turn, number)
        elif self._started and role == "tool":
            self._tool(turn, number)
        elif self._started:
            self._assistant(turn, number, is_call=role == "call")
        return raw

    def _text(self, turn: Row, number: int) -> str:
        if self._content_key not in turn:
            raise Rejected("bad_messages", f"turn {number} has no `{self._content_key}`; it has {_keys(turn)}")
        return text(turn[self._content_key])

    def _system(self, turn: Row, number: int) -> None:
        content = self._text(turn, number)
        if self._messages:
            raise Rejected("system_not_first", f"turn {number}")
        if content.strip():
            self._messages.append({"role": "system", "content": content})

    def _user(self, turn: Row, number: int) -> None:
        content = self._text(turn, number)
        if not content.strip():
            raise Rejected("empty_prompt", f"turn {number}")
        self._started = True
        self._append({"role": "user", "content": content}, turn)

    def _assistant(self, turn: Row, number: int, is_call: bool) -> None:
        if is_call:
            content = ""
            calls = read_calls(self._text(turn, number), self._calls)
            if not calls:
                raise Rejected("bad_tool_call", f"turn {number} holds no call")
        else:
            content = text(turn.get(self._content_key))
            calls = read_calls(turn.get("tool_calls"), self._calls) or read_calls(
                turn.get("function_call"), self._calls
            )
        message: Message = {"role": "assistant", "content": content}
        if isinstance(turn.get("reasoning_content"), str) and turn["reasoning_content"]:
            message["reasoning_content"] = turn["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        self._calls += len(calls)
        self._pending = list(calls)
        self._append(message, turn)

    def _tool(self, turn: Row, number: int) -> None:
        message: Message = {"role": "tool", "content": self._text(turn, number)}
        own_id, name = turn.get("tool_call_id"), turn.get("name")
        if isinstance(own_id, str) and own_id:
            message["tool_call_id"] = own_id
            call = next((call for call in self._pending if call["id"] == own_id), None)
        else:
            named = [call for call in self._pending if call["function"]["name"] == name]
            call = next(iter(named or self._pending), None)
            if call is not None:
                message["tool_call_id"] = call["id"]
        if call is not None:
            self._pending.remove(call)
        self._append(message, turn)

    def _append(self, message: Message, turn: Row) -> None:
        name = turn.get("name")
        if isinstance(name, str) and name:
            message["name"] = name
        self._messages.append(message)


def _keys(turn: Row) -> str:
    return ", ".join(sorted(map(str, turn))[:10]) or "nothing"

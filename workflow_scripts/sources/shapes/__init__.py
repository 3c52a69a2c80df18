"""One row to one conversation, by the shape that the config names or that recognition found.

turns        the conversation from a list of turns, and the rules that hold for all shapes
texts        one question and one answer; strings that take turns
transcripts  a whole conversation in one string
trees        one row a message
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from workflow_scripts.sources.readers import Row, SourceRow
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import texts, transcripts, trees
from workflow_scripts.sources.shapes.turns import ROLES, Conversation, build
from workflow_scripts.sources.tools import parse

if TYPE_CHECKING:  # a worker process must not pay for its import
    from workflow_scripts.config import Columns, Shape

__all__ = [
    "LANGUAGES",
    "NO_SAMPLE_OF_TREES",
    "REQUIRED",
    "ROLES",
    "USUAL",
    "Conversation",
    "Key",
    "Names",
    "column_names",
    "converter",
    "gather",
    "held",
    "meaningless",
    "row_id",
]

Key = Literal["prompt", "response", "system", "input", "tools", "id"]
Names = dict[Key, tuple[str, ...]]  # the columns that each key may be read from, in order

_IDS = ("id", "uuid", "prompt_id", "conversation_id", "conversation_hash", "session_id", "trajectory_id")
# A name with a dot is a field of a column that is an object, as the template's arguments are in smoltalk2.
_SYSTEMS = ("system", "system_prompt", "chat_template_kwargs.custom_instructions")
_TOOLS = ("tools", "chat_template_kwargs.xml_tools", "chat_template_kwargs.python_tools")
_QUESTIONS = ("prompt", "question", "instruction", "query", "problem")
_ANSWERS = ("response", "answer", "output", "completion", "solution")
LANGUAGES = ("language", "lang", "langdetect")

# The usual names of each shape's columns, in order. Keys that are not here mean nothing to the shape; an empty tuple is
# read only where the config names the column.
USUAL: "dict[Shape, dict[Key, tuple[str, ...]]]" = {
    "messages": {
        "prompt": ("messages", "conversations", "conversation"),
        "system": _SYSTEMS,
        "tools": _TOOLS,
        "id": _IDS,
    },
    "sharegpt": {
        "prompt": ("conversations", "conversation", "messages"),
        "system": _SYSTEMS,
        "tools": _TOOLS,
        "id": _IDS,
    },
    "messages_json_string": {
        "prompt": ("messages_json", "messages", "conversations"),
        "system": _SYSTEMS,
        "tools": _TOOLS,
        "id": _IDS,
    },
    "alternating_strings": {
        "prompt": ("conversations", "data", "conversation", "dialog", "messages"),
        "system": (),
        "tools": (),
        "id": _IDS,
    },
    "transcript_string": {
        "prompt": ("chat", "conversation", "text"),
        "system": ("system", "system_prompt"),
        "tools": (),
        "id": _IDS,
    },
    "message_tree": {"prompt": ("text",), "id": ("message_id",)},
    "prompt_response": {
        "prompt": _QUESTIONS,
        "response": _ANSWERS,
        "system": _SYSTEMS,
        "input": (),
        "tools": _TOOLS,
        "id": _IDS,
    },
    "prompt_response_system": {
        "prompt": _QUESTIONS,
        "response": _ANSWERS,
        "system": ("system_prompt", "system"),
        "input": (),
        "tools": _TOOLS,
        "id": _IDS,
    },
    "alpaca": {
        "prompt": ("instruction", "prompt", "question", "query", "problem"),
        "input": ("input", "context"),
        "response": ("output", "response", "answer", "completion", "solution"),
        "system": _SYSTEMS,
        "tools": _TOOLS,
        "id": _IDS,
    },
    "tools_query_answers": {
        "prompt": ("query", "question", "prompt"),
        "tools": ("tools",),
        "response": ("answers", "answer"),
        "system": _SYSTEMS,
        "id": _IDS,
    },
}
REQUIRED: "dict[Shape, tuple[Key, ...]]" = {
    **dict.fromkeys(USUAL, ("prompt",)),
    "prompt_response_system": ("prompt", "system"),
    "tools_query_answers": ("prompt", "tools"),
}


NO_SAMPLE_OF_TREES = "rows of the shape message_tree belong together, and a sample would tear them apart; leave it out"


def meaningless(shape: "Shape", columns: "Columns") -> str | None:
    """A key of the columns that are named, which the shape does not know; None if there is none."""
    return next((key for key, column in columns if column is not None and key not in USUAL[shape]), None)


def column_names(shape: "Shape", columns: "Columns") -> Names:
    """For each key that means something to the shape, the columns it may be read from, in order."""
    names: Names = {}
    for key, usual in USUAL[shape].items():
        named: str | None = getattr(columns, key)
        names[key] = usual if named is None else (named,)
    return names


def gather(shape: "Shape", names: Names, rows: Iterable[SourceRow]) -> Iterable[SourceRow]:
    """What comes before rows are converted one by one: nothing, but for trees, whose rows are brought together."""
    if shape != "message_tree":
        return rows
    return trees.gather(rows, names["prompt"][0])


def converter(shape: "Shape", names: Names) -> Callable[[Row], Conversation]:
    """The function that makes a row a conversation, or raises Rejected. It raises nothing else, whatever the row.

    Of the columns that a key may be read from, it takes the first that a row has; where the shape can do without the
    key, the first that is not empty.
    """
    required = REQUIRED[shape]
    convert = _CONVERTERS[shape]

    @lru_cache(maxsize=256)
    def places(columns: tuple[str, ...]) -> list[tuple[Key, bool, list[str]]]:
        """Each key, whether the shape needs it, and where a row of these columns may hold it."""
        found: list[tuple[Key, bool, list[str]]] = []
        for key, known in names.items():
            there = [name for name in known if name in columns or name.partition(".")[0] in columns]
            if key != "id" and (there or key in required):
                found.append((key, key in required, there))
        return found

    def read(row: Row) -> Conversation:
        values: dict[str, Any] = {}
        for key, needed, there in places(tuple(row)):
            for name in there:
                value = held(row, name, _ABSENT)
                if value is not _ABSENT and (needed or value not in _EMPTY):
                    values[key] = value
                    break
            else:
                if needed:
                    raise Rejected("missing_column", f"no {' or '.join(names[key])}")
        try:
            return convert(values)
        except RecursionError:
            raise Rejected("nested_too_deep") from None

    return read


_ABSENT = object()
_EMPTY: tuple[Any, ...] = (None, "", [], {})


def held(row: Row, name: str, default: Any = None) -> Any:
    """What a row holds in the column `name`, or, for `a.b`, in the field `b` of the column `a`."""
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    nested = row.get(outer) if dot else None
    return held(nested, inner, default) if isinstance(nested, dict) else default


def row_id(row: Row, names: tuple[str, ...]) -> str | None:
    """The row's own id as text, from the first of the columns `names` that holds one; None if none does."""
    for name in names:
        value = held(row, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
    return None


def _chat(role_key: str, content_key: str) -> Callable[[dict[str, Any]], Conversation]:
    """The shapes that hold a list of turns, or a JSON string of one, which name role and content by these keys."""

    def convert(values: dict[str, Any]) -> Conversation:
        turns = values["prompt"]
        if isinstance(turns, str):
            turns = parse(turns, "bad_messages")
        if not isinstance(turns, list):
            raise Rejected("bad_messages", f"the turns are {type(turns).__name__}, not a list")
        return build(turns, role_key, content_key, system=values.get("system"), tools=values.get("tools"))

    return convert


_CONVERTERS: "dict[Shape, Callable[[dict[str, Any]], Conversation]]" = {
    "messages": _chat("role", "content"),
    "sharegpt": _chat("from", "value"),
    "messages_json_string": _chat("role", "content"),
    "alternating_strings": texts.alternating,
    "transcript_string": transcripts.transcript,
    "message_tree": _chat("role", "text"),
    "prompt_response": texts.one_answer,
    "prompt_response_system": texts.one_answer,
    "alpaca": texts.one_answer,
    "tools_query_answers": texts.one_call,
}

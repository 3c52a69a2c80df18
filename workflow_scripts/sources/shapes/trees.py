"""Message trees, as OpenAssistant writes them: one row a message, with `message_id` and `parent_id`.

A tree gives one prompt, at its root's row: the main thread. Below a prompter's message that is the best-ranked reply
(`rank` 0 is the best; a reply without a rank comes after all that have one; of equal ones the first in the source),
below a reply the best prompter's message by the same rule, and so on. A deleted message is as if it were not there,
with all that is below it. A tree whose root is not in the source gives no prompt.

All rows of a source are held before the first prompt comes out, since a tree's rows may stand anywhere.
https://huggingface.co/datasets/OpenAssistant/oasst1
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workflow_scripts.sources.readers import SourceRow
from workflow_scripts.sources.rejects import PART_OF_A_TREE, BadRow, excerpt
from workflow_scripts.sources.shapes.turns import Turn

COLUMNS = ("message_id", "parent_id", "role", "rank", "deleted")


@dataclass(slots=True)
class _Message:
    """One row: its place in the source and in its tree."""

    source_row: SourceRow  # a root's whole, of others only where it stands
    name: str
    parent: str | None
    turn: Turn
    rank: tuple[bool, float]  # the best first
    deleted: bool
    excerpt: str
    root: str | None = None


def gather(rows: Iterable[SourceRow], text_column: str) -> Iterator[SourceRow]:
    """All rows again, in their order: a root with its thread's turns, `{role, text}`, in the place of its text.

    All other rows become bad rows, of the class `part_of_a_tree` where their tree has a root.
    """
    held: list[_Message | SourceRow] = []
    by_name: dict[str, _Message] = {}
    children: dict[str, list[_Message]] = defaultdict(list)
    for source_row in rows:
        message = _read(source_row, text_column)
        if isinstance(message, _Message) and message.name in by_name:
            message = source_row._replace(row=BadRow("doubled_message", message.name, message.excerpt))
        held.append(message)
        if isinstance(message, _Message):
            by_name[message.name] = message
            if message.parent is not None:
                children[message.parent].append(message)
    for message in by_name.values():
        if message.parent is None:
            _mark(message, children)
    for message in held:
        yield message if isinstance(message, SourceRow) else _said(message, children, text_column)


def _read(source_row: SourceRow, text_column: str) -> _Message | SourceRow:
    row = source_row.row
    if isinstance(row, BadRow):
        return source_row
    name, parent, rank = row.get("message_id"), row.get("parent_id"), row.get("rank")
    if not isinstance(name, str) or not isinstance(parent, str | None):
        return source_row._replace(row=BadRow("bad_messages", "message_id or parent_id is no text", excerpt(row)))
    ranked = rank if isinstance(rank, int | float) and not isinstance(rank, bool) else None
    return _Message(
        source_row if parent is None else source_row._replace(row={}),
        name,
        parent,
        {"role": row.get("role"), "text": row.get(text_column)},
        (ranked is None, ranked or 0),
        row.get("deleted") is True,
        excerpt(row),
    )


def _mark(root: _Message, children: dict[str, list[_Message]]) -> None:
    """Tell every message below a root which tree it is of."""
    below = [root]
    while below:
        message = below.pop()
        message.root = root.name
        below += children.get(message.name, ())


def _said(message: _Message, children: dict[str, list[_Message]], text_column: str) -> SourceRow:
    row = message.source_row.row
    if message.root is None:
        row = BadRow("no_root", f"no root above {message.parent} is in the source", message.excerpt)
    elif message.parent is not None:
        row = BadRow(PART_OF_A_TREE, f"the tree of {message.root}", message.excerpt)
    elif message.deleted:
        row = BadRow("deleted_message", message.name, message.excerpt)
    else:
        assert isinstance(row, dict)
        row = {**row, text_column: _thread(message, children)}
    return message.source_row._replace(row=row)


def _thread(root: _Message, children: dict[str, list[_Message]]) -> list[Turn]:
    turns = []
    message: _Message | None = root
    while message is not None:
        turns.append(message.turn)
        there = (child for child in children.get(message.name, ()) if not child.deleted)
        message = min(there, key=lambda child: child.rank, default=None)  # of equal ones min takes the first
    return turns

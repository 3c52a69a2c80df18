"""What `shape: auto` stands for: the shape that a source's first rows have, and the columns it is read from."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from workflow_scripts.config import Columns, Shape
from workflow_scripts.sources.readers import Row
from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.shapes import LANGUAGES, Key, Names, column_names, held, meaningless, trees
from workflow_scripts.sources.shapes.transcripts import is_transcript
from workflow_scripts.sources.tools import parse

ROWS = 200  # so many are looked at
FITTING = 0.8  # the share of a column's values, empty ones aside, that must be of the kinds looked for
PRESENT = 0.5  # the share of all rows that must have such a value

EMPTY = "empty"
TEXT = "text"
ROLE_TURNS = "a list of {role, content}"
FROM_TURNS = "a list of {from, value}"
STRINGS = "a list of strings"
DECLARATIONS = "a list of strings of JSON or Python"
JSON_TURNS = "a JSON string of a list of {role, content}"
JSON_FROM_TURNS = "a JSON string of a list of {from, value}"
JSON_LIST = "a JSON string of a list"
TRANSCRIPT = "a transcript of USER: and ASSISTANT:"
LIST = "a list"
OBJECT = "an object"
NUMBER = "a number"
TEXTS = (TEXT, JSON_TURNS, JSON_FROM_TURNS, JSON_LIST, TRANSCRIPT)  # whatever the text says
SAYING = (*TEXTS, ROLE_TURNS, FROM_TURNS, STRINGS, DECLARATIONS, LIST, OBJECT)  # what may be part of a prompt
MAX_UNREAD = 12  # columns that are not read are named

# The shapes that one column tells, by what it must hold.
_TURNS: tuple[tuple[Shape, str], ...] = (
    ("messages", ROLE_TURNS),
    ("sharegpt", FROM_TURNS),
    ("messages_json_string", JSON_TURNS),
    ("sharegpt", JSON_FROM_TURNS),
    ("alternating_strings", STRINGS),
    ("transcript_string", TRANSCRIPT),
)
_TOOL_LISTS = (LIST, JSON_LIST, DECLARATIONS)
_ANSWERS = (*TEXTS, NUMBER)
# The shapes that several columns tell, the more telling ones first, by what each must hold.
_TEXTS: tuple[tuple[Shape, dict[Key, tuple[str, ...]]], ...] = (
    ("tools_query_answers", {"prompt": TEXTS, "tools": _TOOL_LISTS, "response": (LIST, JSON_LIST)}),
    ("alpaca", {"prompt": TEXTS, "input": TEXTS}),
    ("prompt_response_system", {"prompt": TEXTS, "system": (*TEXTS, EMPTY)}),
    ("prompt_response", {"prompt": TEXTS, "response": _ANSWERS}),
    ("tools_query_answers", {"prompt": TEXTS, "tools": _TOOL_LISTS}),
    ("prompt_response", {"prompt": TEXTS}),
)
_OPTIONAL: dict[Key, tuple[str, ...]] = {"input": TEXTS, "system": TEXTS, "tools": _TOOL_LISTS, "response": _ANSWERS}


class Recognized(NamedTuple):
    """A shape, the columns to read it from, and one line that says why, and which columns are not read.

    `misfits` have a usual name, but hold what the shape can't read there, such as words in `tools`.
    """

    shape: Shape
    columns: Columns
    why: str
    misfits: frozenset[str] = frozenset()

    def names(self) -> Names:
        """For each key the columns that it is read from."""
        usual = column_names(self.shape, self.columns)
        return {key: tuple(name for name in names if name not in self.misfits) for key, names in usual.items()}


class Unrecognized(Exception):
    """No shape fits `rows` rows; `found` says what each column holds, one line a column."""

    def __init__(self, rows: int, found: list[str]) -> None:
        super().__init__(rows, found)
        self.rows = rows
        self.found = found


def recognize(rows: Iterable[Row], columns: Columns, where: Iterable[str] = ()) -> Recognized:
    """The shape of these rows, looked at one by one. Columns that the config names are read as it says.

    `where` are columns that rows are chosen by. Raises Unrecognized.
    """
    table = _Table(rows, [named for _, named in columns if named is not None])
    found = (
        _tree(table, columns)
        or _turns(table, columns)
        or _texts(table, columns)  # a question is more telling than turns of an unusual name: they may be earlier ones
        or _turns(table, columns, any_name=True)
    )
    if found is None:
        raise Unrecognized(table.rows, table.describe())
    unread = _unread(table, found, where)
    if not unread:
        return found
    named = ", ".join(f"`{name}`" for name in unread[:MAX_UNREAD])
    more = f" and {len(unread) - MAX_UNREAD} more" if len(unread) > MAX_UNREAD else ""
    return found._replace(why=f"{found.why}; not read: {named}{more}")


class _Table:
    """What kinds of values each column holds."""

    def __init__(self, rows: Iterable[Row], named: list[str]) -> None:
        self.rows = 0
        self.kinds: dict[str, Counter[str]] = defaultdict(Counter)
        self.keys: dict[str, str] = {}  # of the objects in a column's lists, as far as these are nothing known
        nested = [name for name in named if "." in name]
        for row in rows:
            self.rows += 1
            for name in (*row, *(name for name in nested if name not in row)):
                value = held(row, name)
                self.kinds[name][_kind(value)] += 1
                if name not in self.keys and (keys := _keys_within(value)):
                    self.keys[name] = keys

    def count(self, name: str, *kinds: str) -> int:
        """In how many rows the column holds a value of these kinds; 0 where it mostly holds others."""
        if name not in self.kinds:
            return 0
        fitting = sum(self.kinds[name][kind] for kind in kinds)
        return fitting if fitting >= PRESENT * self.rows and self.fits(name, *kinds) else 0

    def fits(self, name: str, *kinds: str) -> bool:
        """Whether the column's values, however few, are mostly of these kinds; so are those of one without any."""
        found = self.kinds[name]
        return sum(found[kind] for kind in kinds) >= FITTING * (found.total() - found[EMPTY])

    def first(self, names: Iterable[str], *kinds: str) -> str | None:
        """The first of these columns that holds these kinds."""
        return next((name for name in names if self.count(name, *kinds)), None)

    def first_fitting(self, names: Iterable[str], *kinds: str) -> str | None:
        """The first of these columns that there is and that fits."""
        return next((name for name in self.there(names) if self.fits(name, *kinds)), None)

    def there(self, names: Iterable[str]) -> list[str]:
        """Those of these columns that there are."""
        return [name for name in names if name in self.kinds]

    def read(self, names: Iterable[str]) -> list[str]:
        """Those of these columns that some row is read from: the first, and the next where that is empty."""
        found = []
        for name in self.there(names):
            found.append(name)
            if self.kinds[name].total() - self.kinds[name][EMPTY] == self.rows:
                break
        return found

    def _named(self, name: str, kind: str) -> str:
        return f"a list of {{{self.keys[name]}}}" if kind == LIST and name in self.keys else kind

    def describe(self) -> list[str]:
        return [
            f"`{name}`: " + ", ".join(f"{self._named(name, kind)} ({count})" for kind, count in kinds.most_common(4))
            for name, kinds in self.kinds.items()
        ]


def _keys_within(value: Any) -> str | None:
    """The keys of a list's first object."""
    first = value[0] if isinstance(value, list) and value else None
    return ", ".join(map(str, [*first][:MAX_UNREAD])) if isinstance(first, dict) and first else None


def _tree(table: _Table, columns: Columns) -> Recognized | None:
    [prompt] = column_names("message_tree", columns)["prompt"]
    if not all(table.count(name, *TEXTS) for name in ("message_id", "role", prompt)) or "parent_id" not in table.kinds:
        return None
    why = f"each row is one message, with `message_id`, `parent_id`, `role` and `{prompt}`"
    return _recognized(table, "message_tree", columns, {"prompt": prompt}, why)


def _turns(table: _Table, columns: Columns, any_name: bool = False) -> Recognized | None:
    for shape, kind in _TURNS:
        name = table.first(column_names(shape, columns)["prompt"], kind)
        if any_name and columns.prompt is None and kind != STRINGS:  # which tags would be too
            others = [other for other in table.kinds if table.count(other, kind)]
            name = others[0] if len(others) == 1 else None
        if name is not None:
            why = f"column `{name}` is {kind} in {table.count(name, kind)} of {table.rows} rows"
            found = _recognized(table, shape, columns, {"prompt": name}, why)
            if found is not None:
                return found
    return None


def _texts(table: _Table, columns: Columns) -> Recognized | None:
    for shape, wanted in _TEXTS:
        usual = column_names(shape, columns)
        find = {key: table.first_fitting if key == "input" else table.first for key in wanted}  # inputs may be few
        names = {key: find[key](usual[key], *kinds) for key, kinds in wanted.items()}
        if None in names.values():
            continue
        for key, kinds in _OPTIONAL.items():
            if key in usual and key not in names:
                names[key] = table.first_fitting(usual[key], *kinds)
        held_by = {key: name for key, name in names.items() if name is not None}
        asked = held_by["prompt"]
        listed = ", ".join(f"`{name}`" for name in held_by.values())
        why = f"columns {listed}" if len(held_by) > 1 else f"column {listed}"
        why += "" if "response" in held_by else " and no answer"
        why += f"; `{asked}` is text in {table.count(asked, *TEXTS)} of {table.rows} rows"
        found = _recognized(table, shape, columns, held_by, why)
        if found is not None:
            misfits = {
                name
                for key, kinds in _OPTIONAL.items()
                if key in usual and getattr(columns, key) is None
                for name in table.there(usual[key])
                if not table.fits(name, *wanted.get(key, kinds))
            }
            return found._replace(misfits=frozenset(misfits))
    return None


def _recognized(table: _Table, shape: Shape, columns: Columns, names: dict[Key, str], why: str) -> Recognized | None:
    """The shape with these columns; None if the config names one that means nothing to the shape."""
    if meaningless(shape, columns) is not None:
        return None
    usual = column_names(shape, columns)
    # Named where the shape would read another column, which rows have too.
    other: dict[str, str] = {key: name for key, name in names.items() if table.there(usual[key])[:1] != [name]}
    return Recognized(shape, columns.model_copy(update=other), f"shape {shape}: {why}")


def _unread(table: _Table, found: Recognized, where: Iterable[str]) -> list[str]:
    """The columns that may hold part of a prompt and are not read."""
    read = {*where, *LANGUAGES, *(trees.COLUMNS if found.shape == "message_tree" else ())}
    for names in found.names().values():
        read.update(table.read(names))
        read.update(name.partition(".")[0] for name in names)
    return [
        name
        for name, kinds in table.kinds.items()
        if name not in read and not name.endswith(("id", "_hash")) and any(kinds[kind] for kind in SAYING)
    ]


def _kind(value: Any) -> str:
    if value in (None, [], {}):
        return EMPTY
    if isinstance(value, str):
        return _kind_of_text(value)
    if isinstance(value, list):
        return _kind_of_list(value)
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return NUMBER
    return OBJECT if isinstance(value, dict) else f"a {type(value).__name__}"


def _kind_of_text(value: str) -> str:
    if not value.strip():
        return EMPTY
    if value.lstrip()[0] == "[" and value.rstrip()[-1] == "]":
        try:
            kind = _kind_of_list(parse(value, "bad_messages"))
        except Rejected:
            return TEXT
        return {ROLE_TURNS: JSON_TURNS, FROM_TURNS: JSON_FROM_TURNS}.get(kind, JSON_LIST)
    return TRANSCRIPT if is_transcript(value) else TEXT


def _kind_of_list(value: list[Any]) -> str:
    for kind, role, content in ((ROLE_TURNS, "role", "content"), (FROM_TURNS, "from", "value")):
        if all(isinstance(item, dict) and role in item for item in value) and any(content in item for item in value):
            return kind  # a turn of calls may have no content
    if not all(isinstance(item, str) for item in value):
        return LIST
    return DECLARATIONS if all(item.lstrip().startswith(("{", "def ")) for item in value) else STRINGS

"""A config's mistakes as a user can read them: one line each, where it is, what is wrong, what is allowed."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

NAME = r"^[a-z0-9][a-z0-9_]{0,63}$"
DATASET = r"^[A-Za-z0-9][\w.-]*/[\w.-]+$"
DATASET_PAGE = re.compile(r"https?://[^/]+/datasets/([^/]+/[^/?#]+)")
RULES = {NAME: "lower-case letters, digits and _, 64 characters at most", DATASET: "owner/name, as on the hub"}


# What is wanted where pydantic finds a value of another kind.
WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def lines(error: ValidationError, model: type[BaseModel], where: str) -> list[str]:
    """One line per mistake, each `where: key: what is wrong`."""
    by_key: dict[str, list[Any]] = {}
    for item in error.errors():
        by_key.setdefault(_key(item), []).append(item)
    # What is wrong inside a value tells more than that the whole is of another kind too.
    found = {
        key: _reason(items, model)
        for key, items in by_key.items()
        if not any(other.startswith(f"{key}.") for other in by_key)
    }
    return [f"{where}: {key}: {reason}" if key else f"{where}: {reason}" for key, reason in found.items()]


def no_json(value: Any, key: str = "") -> Iterator[str]:
    """One line for each text and number of a config that JSON can't hold, `key: what is wrong`: RUN is a hash of it."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield from no_json(name, key)
            yield from no_json(held, f"{key}.{name}" if key else _shown_text(name))
    elif isinstance(value, list):
        for held in value:
            yield from no_json(held, key)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield f"{key}: {value} has more than 64 bits"
    elif isinstance(value, str) and not value.isascii() and value != _shown_text(value):
        yield f"{key}: {value!r} holds half a character (a surrogate), which no UTF-8 text does"


def _shown_text(text: Any) -> str:
    return str(text).encode(errors="replace").decode()


# Parts of a pydantic location that are no keys of the config: the branches of a union.
_UNION_BRANCH = re.compile(r"^(constrained-|function-|literal\[|int$|str$|bool$|float$|list\[|none$|dict\[|\()")


def _place(item: Any) -> list[str]:
    """The keys that lead to a mistake."""
    return [str(part) for part in item["loc"] if part != "[key]" and not _UNION_BRANCH.match(str(part))]


def _key(item: Any) -> str:
    """The dotted key of a mistake; "" for the config as a whole."""
    return ".".join(_place(item))


def _reason(items: list[Any], model: type[BaseModel]) -> str:
    """What is wrong with one value. One that may be of several kinds, and is of none, has a mistake for each."""
    told = [reason for item in items if (reason := _hint(item) or _explain(item, model))]
    if told:
        return told[0]
    wanted = [WANTED.get(item["type"], item["msg"].removeprefix("Input should be ")) for item in items]
    return f"{_shown(items[0]['input'])} should be {' or '.join(dict.fromkeys(wanted))}"


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | bool) or value is None else f"a {type(value).__name__}"


def _hint(item: Any) -> str | None:
    """How to write what was likely meant."""
    place, value, kind = _place(item), item["input"], item["type"]
    last = place[-1] if place else ""
    if kind == "string_type" and type(value) in (int, float):
        octal = ""
        if last in ("config", "revision") and type(value) is int and value > 7:
            octal = f' (or "0{value:o}": YAML reads a leading 0 as octal)'
        return f'{value} is a number; quote it: "{value}"{octal}'
    names_datasets = kind == "dict_type" and last in ("substitutes", "fill")
    if isinstance(value, str) and (kind == "list_type" or names_datasets):
        return f"write a list: [{value}]"
    if names_datasets:
        return "write a list of names, or a mapping of names to datasets"
    if kind == "model_type" and item["ctx"]["class_name"] in ("Source", "Reading") and isinstance(value, str):
        return f"write {last}: {{use: {value}}}"
    if kind == "dict_type" and place == ["sources"]:
        return "write a mapping of your own names to datasets"
    page = DATASET_PAGE.match(value) if kind == "string_pattern_mismatch" and last == "dataset" else None
    return f"write {page[1]}" if page else None


def _explain(item: Any, model: type[BaseModel]) -> str | None:
    """What is wrong with a value, unless it is that it should be another one."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = _model_at(item["loc"], model)
        near = difflib.get_close_matches(_place(item)[-1], allowed, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        return f"unknown key; {meant}allowed here: {', '.join(allowed or ['values', 'weights'])}"
    if kind == "missing":
        return "is missing"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return f"{_shown(item['input'])} is not allowed; allowed: {RULES.get(pattern, pattern)}"
    if kind == "value_error":
        return str(context["error"])
    return None if item["msg"].startswith("Input should be ") else f"{_shown(item['input'])}: {item['msg']}"


def _model_at(location: tuple[Any, ...], model: type[BaseModel]) -> list[str]:
    """The keys that are allowed where an unknown one stands."""
    node: Any = model
    for part in location[:-1]:
        if isinstance(node, type) and issubclass(node, BaseModel) and part in node.model_fields:
            annotation: Any = node.model_fields[part].annotation
            node = annotation
        elif getattr(node, "__origin__", None) is dict:
            node = node.__args__[1]
    if isinstance(node, type) and issubclass(node, BaseModel):
        return list(node.model_fields)
    return []

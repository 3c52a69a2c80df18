"""A config's mistakes as a user can read them: one line each, where it is, what is wrong, what is allowed."""

import difflib
import re
from typing import Any

from pydantic import BaseModel, ValidationError

NAME = r"^[a-z0-9][a-z0-9_]{0,63}$"
DATASET = r"^[A-Za-z0-9][\w.-]*/[\w.-]+$"
RULES = {NAME: "lower-case letters, digits and _, 64 characters at most", DATASET: "owner/name, as on the hub"}


def lines(error: ValidationError, model: type[BaseModel], where: str) -> list[str]:
    """One line per mistake, each `where: key: what is wrong`."""
    by_key: dict[str, list[str]] = {}
    for item in error.errors():
        key, reason = _explain(item, model)
        by_key.setdefault(key, []).append(reason)
    # A value that fits none of several kinds has a reason for each.
    found = {key: ", and ".join(dict.fromkeys(reasons)) for key, reasons in by_key.items()}
    return [f"{where}: {key}: {reason}" if key else f"{where}: {reason}" for key, reason in found.items()]


# Parts of a pydantic location that are no keys of the config: the branches of a union.
_UNION_BRANCH = re.compile(r"^(constrained-|function-|literal\[|int$|str$|bool$|float$|list\[|none$|dict\[)")


def _explain(item: Any, model: type[BaseModel]) -> tuple[str, str]:
    """The dotted key of a mistake ("" for the config as a whole), and what is wrong with it."""
    place = [str(part) for part in item["loc"] if not _UNION_BRANCH.match(str(part))]
    is_key = place and place[-1] == "[key]"
    key = ".".join(part for part in place if part != "[key]")
    value = item["input"]
    shown = repr(value) if isinstance(value, str | int | float | bool) or value is None else f"a {type(value).__name__}"
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = _model_at(item["loc"], model)
        near = difflib.get_close_matches(place[-1], allowed, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        return key, f"unknown key; {meant}allowed here: {', '.join(allowed)}"
    if kind == "missing":
        return key, "is missing"
    if is_key or kind == "string_pattern_mismatch":
        pattern = context.get("pattern")
        return key, f"{shown} is not allowed; allowed: {RULES.get(pattern, pattern)}"
    if kind == "literal_error":
        return key, f"{shown} is not one of {context['expected']}"
    if kind == "value_error":
        return key, str(context["error"])
    return key, f"{shown} {item['msg'].replace('Input should be', 'should be')}"


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

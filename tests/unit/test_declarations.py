"""Tools as SGLang shows them to a template."""

from typing import Any

import pytest

from workflow_scripts.prompts.declarations import as_shown


def shown(parameters: Any) -> Any:
    return as_shown({"type": "function", "function": {"name": "f", "parameters": parameters}})["function"]["parameters"]


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("string", "string"),
        ("String", "string"),
        ("varchar(255)", "string"),
        ("datetime", "string"),
        ("int64", "integer"),
        ("unsigned int", "integer"),
        ("float", "number"),
        ("decimal(10,2)", "number"),
        ("list[str]", "array"),
        ("dict<str, int>", "object"),
        ("dict", "object"),
        ("bool", "boolean"),
        ("internal", "internal"),
        ("list_price", "list_price"),
        ("any", "any"),
        (None, None),
        (["str", "text", "null"], ["string", "null"]),
    ],
)
def test_types_become_json_schemas(declared: Any, kind: Any) -> None:
    assert shown({"type": declared}) == {"type": kind}


def test_types_are_found_wherever_a_schema_may_stand() -> None:
    inner, right = {"type": "str"}, {"type": "string"}
    given = {
        "type": "dict",
        "properties": {"type": inner, "b": {"type": "list", "items": inner}},
        "anyOf": [inner],
        "not": inner,
        "items": [inner],
        "additionalProperties": False,
        "enum": ["str"],
        "default": inner,  # no schema
    }
    before = repr(given)
    assert shown(given) == {
        "type": "object",
        "properties": {"type": right, "b": {"type": "array", "items": right}},
        "anyOf": [right],
        "not": right,
        "items": [right],
        "additionalProperties": False,
        "enum": ["str"],
        "default": inner,
    }
    assert repr(given) == before


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"name": "f"}, ["name", "description", "parameters"]),
        ({"parameters": {}, "name": "f"}, ["parameters", "name", "description"]),
        ({"strict": None, "name": "f", "returns": 1}, ["name", "description", "parameters"]),
        ({"strict": True, "name": "f", "description": "d"}, ["strict", "name", "description", "parameters"]),
    ],
)
def test_keys_are_those_of_the_api_in_the_order_given(given: dict[str, Any], keys: list[str]) -> None:
    tool = as_shown({"function": given, "cache_control": 1})
    assert list(tool) == ["type", "function", "defer_loading"] and tool["type"] == "function"
    assert list(tool["function"]) == keys

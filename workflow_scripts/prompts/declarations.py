"""Tools as SGLang hands them to a chat template, which writes them into the prompt as JSON.

After `normalize_json_schema_types` (sglang/srt/function_call/utils.py) and the request types `Tool` and `Function`
(sglang/srt/entrypoints/openai/protocol.py) of SGLang 0.5.23: types of databases and of programming languages become
JSON Schema's; keys that the API does not know are dropped; a tool ends with "defer_loading": null, and a function
without a description has one that is null.
"""

from typing import Any

_STANDARD = frozenset(["string", "number", "integer", "boolean", "array", "object", "null"])
_ALIASES = {
    **dict.fromkeys(["str", "text", "varchar", "char", "enum", "uuid"], "string"),
    **dict.fromkeys(["date", "datetime", "time", "timestamp"], "string"),
    **dict.fromkeys(["binary", "blob", "bytea", "bytes", "varbinary"], "string"),
    "bool": "boolean",
    **dict.fromkeys(["bigint", "smallint", "tinyint"], "integer"),
    **dict.fromkeys(["double", "decimal", "real", "numeric"], "number"),
    **dict.fromkeys(["arr", "tuple", "set"], "array"),
    "map": "object",
}
# Which may go on: int32, list[str], dict<str, int>.
_BEGINNINGS = {
    **dict.fromkeys(["int", "uint", "long", "short", "unsigned"], "integer"),
    **dict.fromkeys(["num", "float"], "number"),
    "list": "array",
    "dict": "object",
}
_KEYS = ("name", "description", "parameters", "strict")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties"),
)


def as_shown(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool in the form, and with the order of keys, in which a template gets it."""
    given = tool.get("function", tool)
    function = {key: given[key] for key in given if key in _KEYS and (key != "strict" or given[key] is not None)}
    function |= {key: None for key in ("description", "parameters") if key not in function}
    function["parameters"] = _schema(function["parameters"])
    return {"type": tool.get("type", "function"), "function": function, "defer_loading": None}


def _schema(node: Any) -> Any:
    if isinstance(node, list):
        return [_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = dict(node)
    kind = schema.get("type")
    if isinstance(kind, list):
        schema["type"] = list(dict.fromkeys(map(_type, kind)))
    elif "type" in schema:
        schema["type"] = _type(kind)
    for key in _BY_NAME:
        if isinstance(schema.get(key), dict):
            schema[key] = {name: _schema(held) for name, held in schema[key].items()}
    for key in (*_LISTS, *_SCHEMAS):
        if key in schema and (key in _SCHEMAS or isinstance(schema[key], list)):
            schema[key] = _schema(schema[key])
    return schema


def _type(declared: Any) -> Any:
    """JSON Schema's name of a type; one that is unknown stays."""
    if not isinstance(declared, str) or declared in _STANDARD:
        return declared
    base = declared.partition("(")[0].strip().lower()
    if base in _STANDARD:
        return base
    if base in _ALIASES:
        return _ALIASES[base]
    for beginning, kind in _BEGINNINGS.items():
        after = base.removeprefix(beginning)
        if base.startswith(beginning) and (not after or after[0] in "0123456789[<( \t"):
            return kind
    return declared

"""Tool declarations and tool calls, as datasets write them, to the form of the OpenAI chat API.

Declarations: https://platform.openai.com/docs/guides/function-calling; xLAM's are described on the card of
Salesforce/xlam-function-calling-60k: `parameters` maps each argument to `{description, type, default}`, where the
type is Python's (`str`, `List[int]`, `int, optional`).
"""

import ast
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

import orjson

from workflow_scripts.records import ToolCall
from workflow_scripts.sources.json_rows import load_exact
from workflow_scripts.sources.rejects import Rejected

_JSON_TYPES = {
    "str": "string",
    "string": "string",
    "int": "integer",
    "integer": "integer",
    "float": "number",
    "double": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "array": "array",
    "dict": "object",
    "object": "object",
    "none": "null",
    "null": "null",
}
_GENERIC = re.compile(r"(?P<outer>\w+)\[(?P<inner>.*)\]", re.DOTALL)


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools of a row: `[{"type": "function", "function": {"name", "description"?, "parameters"}}]`, or None.

    `value` is a list or a JSON string of one; each item may be a JSON string too, or a Python function's text. Tools
    in the API's form stay as they are; a bare function is wrapped, and its parameters become JSON Schema.
    Rejected(`bad_tools`) if a tool can't be understood, or could not be written as JSON again unchanged.
    """
    if isinstance(value, str):
        value = parse(value, "bad_tools") if value.strip() else None
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise Rejected("bad_tools", f"tools are {type(value).__name__}, not a list")
    tools = [_tool(item) for item in value]
    try:
        orjson.dumps(tools)
    except TypeError as error:  # an integer beyond 64 bits, nested beyond 254 levels, no JSON value
        raise Rejected("bad_tools", str(error)) from error
    return tools


def _tool(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        item = _python_function(item) if item.lstrip().startswith("def ") else parse_loosely(item, "bad_tools")
    if not isinstance(item, dict):
        raise Rejected("bad_tools", f"a tool is {type(item).__name__}, not an object")
    wrapped = "function" in item
    function = item["function"] if wrapped else item
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"].strip():
        raise Rejected("bad_tools", "a tool has no name")
    if wrapped:
        return item if item.get("type") == "function" else {"type": "function", "function": function}
    bare: dict[str, Any] = {"name": function["name"]}
    if isinstance(function.get("description"), str):
        bare["description"] = function["description"]
    bare["parameters"] = _parameters(function.get("parameters"))
    return {"type": "function", "function": bare}


def _python_function(source: str) -> dict[str, Any]:
    """A function whose parameters are those of a `def`, by its annotations, defaults and docstring."""
    try:
        node = _quietly(ast.parse, source.strip()).body[0]
        if not isinstance(node, ast.FunctionDef):
            raise ValueError("other Python text")
        properties, required = {}, []
        spec = node.args
        arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
        without = len(spec.posonlyargs) + len(spec.args) - len(spec.defaults)
        has_default = [index >= without for index in range(len(spec.posonlyargs) + len(spec.args))]
        has_default += [default is not None for default in spec.kw_defaults]
        for argument, optional in zip(arguments, has_default, strict=True):
            properties[argument.arg] = _type(ast.unparse(argument.annotation)) if argument.annotation else {}
            if not optional:
                required.append(argument.arg)
        about = ast.get_docstring(node)
    except (SyntaxError, ValueError, MemoryError, IndexError) as error:  # whose texts differ by Python's version
        raise Rejected("bad_tools", "a tool is text, but no JSON and no Python function") from error
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return {"name": node.name, "description": about, "parameters": parameters}


def _parameters(value: Any) -> dict[str, Any]:
    if value is None or value == {}:
        return {"type": "object", "properties": {}}
    if not isinstance(value, dict):
        raise Rejected("bad_tools", f"parameters are {type(value).__name__}, not an object")
    if isinstance(value.get("type"), str) or "$ref" in value:  # an argument named `type` would map to an object
        return _schema(value)
    properties = {}
    required = []
    for name, about in value.items():
        if not isinstance(about, dict):
            raise Rejected("bad_tools", f"the argument {name!r} is {type(about).__name__}, not an object")
        kind = about.get("type")
        declared = kind if isinstance(kind, str) else ""
        properties[name] = {**_type(declared), **{key: held for key, held in about.items() if key != "type"}}
        if not _is_optional(declared) and "default" not in about:
            required.append(name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


def _schema(node: dict[str, Any]) -> dict[str, Any]:
    """A JSON Schema whose types are JSON Schema's too, not Python's."""
    schema = dict(node)
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = _JSON_TYPES.get(kind.strip().lower(), kind)
        if schema["type"] == "any":
            del schema["type"]  # JSON Schema's word for any value is none
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {
            name: _schema(about) if isinstance(about, dict) else about for name, about in schema["properties"].items()
        }
    if isinstance(schema.get("items"), dict):
        schema["items"] = _schema(schema["items"])
    return schema


def _is_optional(declared: str) -> bool:
    return declared.replace(" ", "").lower().endswith(",optional") or declared.strip().startswith("Optional[")


def _type(declared: str) -> dict[str, Any]:
    """JSON Schema's words for a Python type; nothing, which is any value, for one that has no counterpart."""
    text = declared.strip()
    if text.replace(" ", "").lower().endswith(",optional"):
        text = text[: text.rindex(",")].strip()
    generic = _GENERIC.fullmatch(text)
    if generic is None:
        known = _JSON_TYPES.get(text.lower())
        return {} if known is None else {"type": known}
    outer, inner = generic["outer"].lower(), generic["inner"]
    if outer == "optional":
        return _type(inner)
    known = _JSON_TYPES.get(outer)
    if known != "array":
        return {} if known is None else {"type": known}
    items = {} if outer == "tuple" else _type(inner)
    return {"type": "array", "items": items} if items else {"type": "array"}


def read_calls(value: Any, first: int) -> list[ToolCall]:
    """The tool calls of an assistant turn; without an id of its own a call is named `call_N`, N from `first`.

    `value` is null, a call, a list of calls, or a string of these, JSON or Python; a call is `{"name", "arguments"}`,
    bare or as the `function` of the API's form. Arguments become a JSON string. Rejected(`bad_tool_call`) otherwise.
    """
    if isinstance(value, str):
        value = parse_loosely(value, "bad_tool_call") if value.strip() else None
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    return [_call(item, f"call_{first + index}") for index, item in enumerate(items)]


def _call(item: Any, spare_id: str) -> ToolCall:
    if not isinstance(item, dict):
        raise Rejected("bad_tool_call", f"a call is {type(item).__name__}, not an object")
    function = item["function"] if isinstance(item.get("function"), dict) else item
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Rejected("bad_tool_call", "a call has no name")
    own_id = item.get("id")
    return {
        "id": own_id if isinstance(own_id, str) and own_id else spare_id,
        "type": "function",
        "function": {"name": name, "arguments": _arguments(function.get("arguments"))},
    }


def _arguments(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    if value is None or isinstance(value, str):
        return "{}"
    if not isinstance(value, dict):
        raise Rejected("bad_tool_call", f"arguments are {type(value).__name__}, not an object")
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        try:  # integers beyond 64 bits, which orjson does not write
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise Rejected("bad_tool_call", f"arguments: {error}") from error


def parse(text: str, kind: str) -> Any:
    """The value of a JSON string in a field, exact; Rejected(`kind`) if it is none."""
    try:
        return load_exact(text.encode())
    except (ValueError, RecursionError) as error:
        raise Rejected(kind, f"not JSON: {error}") from error


MAX_LITERAL = 1 << 18  # characters; Python's parser takes memory many times a text's size


def parse_loosely(text: str, kind: str) -> Any:
    """The value of JSON, or of a Python literal that could be JSON; Rejected(`kind`) if it is neither."""
    try:
        return parse(text, kind)
    except Rejected:
        if len(text) > MAX_LITERAL:
            raise
        try:
            return load_exact(json.dumps(_quietly(ast.literal_eval, text.strip()), allow_nan=False).encode())
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
            pass
        raise  # with what JSON's parser said: the texts of Python's differ by its version


def _quietly(read: Callable[[str], Any], text: str) -> Any:
    """Python's parser on data, without its warnings of escapes that Python would not write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(text)

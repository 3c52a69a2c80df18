"""Tools, calls, results and thinking that datasets write inside text.

- Hermes (https://huggingface.co/datasets/NousResearch/hermes-function-calling-v1), and templates like Qwen's:
  `<tools>` in the system text, `<tool_call>` in assistant turns, `<tool_response>` in tool turns; JSON, or Python
  literals where the tools were printed from Python.
- ToolACE (https://huggingface.co/datasets/Team-ACE/ToolACE): a JSON list in the system text, calls as
  `[Some Name(key="value", n=2)]`, results as `[{"name": ..., "results": ...}]`.
- Glaive v2 (https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2): JSON objects one after another in
  the system text, calls as `<functioncall> {"name": "f", "arguments": '{"a": 1}'}`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tools import parse, parse_loosely

_MARKERS = (  # what a JSON list, or objects one after another, follow
    re.compile(r"Here is a list of functions in JSON format that you can invoke[:.]\s*"),
    re.compile(
        r"(?:You are a helpful assistant )?with access to the following functions\. Use them if required\s*-\s*"
    ),
)
# The words of the call protocols. Each goes with the declaration; any other text of a system prompt stays.
_PROTOCOL = re.compile(
    "(?:"
    + "|".join(
        (
            r"You are a function calling AI model\.",
            r"#+ Tools(?=\s)",
            r"You are provided with function signatures within <tools>\s*</tools> XML tags[.:]",
            r"You may call one or more functions to assist with the user query\.",
            r"If available tools are not relevant in assisting with user query, just respond in natural conversational "
            r"language\.",
            r"Don't make assumptions about what values to plug into functions\.",
            r"After calling & executing the functions, you will be provided with function results within "
            r"<tool_response>\s*</tool_response> XML tags\.",
            r"Here are the available tools:",
            r"Use the following pydantic model json schema for each tool call you will make:\s*"
            r"\{[^<]*?\}(?=\s*(?:For each function call|\Z))",
            r"For each function call,? return a json object (?:with function name and arguments )?within "
            r"<tool_call>\s*</tool_call> (?:XML )?tags(?: with the following schema| as follows)?[.:]?"
            r"(?:\s*<tool_call>[^<]*(?:<(?!/tool_call>)[^<]*)*</tool_call>)?",
            r"You are an expert in composing functions\.",
            r"You are given a question and a set of possible functions\.",
            r"Based on the question, you will need to make one or more function/tool calls to achieve the purpose\.",
            r"If none of the functions? can be used, point it out\.",
            r"If the given question lacks the parameters required by the function,\s*also point it out\.",
            r"You should only return the function calls? in (?:tools call sections|your response)\.",
            r"Should you decide to return the function call\(s\)[.,]?",
            r"Put it in the format of \[[^\]]*\]\.?",
            r"NO other text MUST be included\.",
        )
    )
    + r")\s*"
)
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


class Declaration(NamedTuple):
    """Tools inside a system text: their text, and the system text without them."""

    body: str
    rest: str

    def tools(self) -> list[Any]:
        """What the body holds: a list, or objects one after another; JSON or Python. Rejected(`bad_tools`) if not."""
        try:
            values = [parse(self.body[start:end], "bad_tools") for start, end in _json_spans(self.body)]
        except Rejected:
            try:
                values = [parse_loosely(self.body, "bad_tools")]
            except Rejected:
                values = [parse_loosely(line, "bad_tools") for line in self.body.splitlines() if line.strip()]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values


class Result(NamedTuple):
    """What a tool gave: its name where the text says it, and its content."""

    name: str | None
    content: str


def declared(system: str) -> Declaration | None:
    """The tools that a system text declares; None if it declares none. Rejected(`bad_tools`) if they never end."""
    found = _tools_block(system) or _marked(system)
    if found is None:
        return None
    return Declaration(found.body, _PROTOCOL.sub("", found.rest).strip())


def _tools_block(system: str) -> Declaration | None:
    before, *pieces = system.split("<tools>")
    for piece in pieces:
        body, closing, after = piece.partition("</tools>")
        if closing and body.lstrip()[:1] in ("[", "{"):
            used = len(before) + len("<tools>") + len(piece)
            return Declaration(body, before + after + system[used:])
        before += "<tools>" + piece  # the words of the protocol name the tags too
    return None


def _marked(system: str) -> Declaration | None:
    for marker in _MARKERS:
        match = marker.search(system)
        if match is None:
            continue
        start = match.end()
        if system[start : start + 1] not in ("[", "{") and system[start:].strip():
            continue  # no declaration follows the words
        end = start
        for value, end in _json_spans(system, start, only="[{"):  # noqa: B007
            if system[value] == "[":
                break
        return Declaration(system[start:end], system[: match.start()] + system[end:].removeprefix("."))
    return None


def _json_spans(text: str, at: int = 0, only: str = "") -> Iterator[tuple[int, int]]:
    """Where the JSON texts stand, one after another; with `only`, up to one that begins otherwise.

    Rejected(`bad_tools`) at one that can't be read.
    """
    while True:
        at = _end_of_space(text, at)
        if at == len(text) or (only and text[at] not in only):
            return
        try:
            _, end = _DECODER.raw_decode(text, at)
        except ValueError as error:
            raise Rejected("bad_tools", f"in the system text: {error}") from error
        yield at, end
        at = end


def _end_of_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches the empty string
    return match.end()


def split_thinking(content: str) -> tuple[str, str]:
    """The thinking of an answer that begins with a `<think>` block, and the rest; no thinking if it has none.

    Line breaks around both are dropped, as chat templates do.
    """
    opened = content.lstrip()
    if not opened.startswith("<think>"):
        return "", content
    thinking, closing, rest = opened.removeprefix("<think>").partition("</think>")
    return (thinking.strip("\n"), rest.lstrip("\n")) if closing else ("", content)


def calls(content: str, names: list[str]) -> tuple[list[Any], str]:
    """The calls in an assistant's text, as objects, and the text around them. `names` are of the declared tools.

    Rejected(`bad_tool_call`) if a call can't be read.
    """
    if "<tool_call>" in content:
        bodies, rest = _blocks(content, "tool_call", "bad_tool_call")
        found: list[Any] = []
        for body in bodies:
            value = parse_loosely(body, "bad_tool_call")
            found += value if isinstance(value, list) else [value]
        return found, rest
    if "<functioncall>" in content:
        before, _, body = content.partition("<functioncall>")
        return [_glaive_call(body.strip())], before.strip()
    stripped = content.strip()
    if stripped[:1] == "[" and _called(stripped, 1, names):
        return _PythonCalls(stripped, names).read(), ""
    return [], content


def _blocks(content: str, tag: str, kind: str) -> tuple[list[str], str]:
    """The bodies of all `<tag>` blocks, and the text around them."""
    before, *pieces = content.split(f"<{tag}>")
    around, bodies = [before], []
    for piece in pieces:
        body, closing, after = piece.partition(f"</{tag}>")
        if not closing:
            raise Rejected(kind, f"<{tag}> does not end")
        bodies.append(body.strip())
        around.append(after)
    return bodies, "\n".join(piece.strip() for piece in around if piece.strip())


_GLAIVE = re.compile(r"""\{\s*"name":\s*"([^"\\]+)",\s*"arguments":\s*'(.*)'\s*\}""", re.DOTALL)


def _glaive_call(body: str) -> Any:
    match = _GLAIVE.fullmatch(body)
    if match is None:
        return parse(body, "bad_tool_call")
    name, arguments = match.groups()
    try:
        return {"name": name, "arguments": parse(arguments, "bad_tool_call")}
    except Rejected:  # an apostrophe inside a single-quoted string may be escaped
        return {"name": name, "arguments": parse(arguments.replace("\\'", "'"), "bad_tool_call")}


def _called(text: str, at: int, names: Iterable[str]) -> str | None:
    """The longest of the names that `text` calls at `at`. Names may hold spaces and brackets."""
    return max((name for name in names if text.startswith(name + "(", at)), key=len, default=None)


_TOKEN = re.compile(r""""(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|[\[\](){},]""", re.DOTALL)


class _PythonCalls:
    """`[Some Name(key="value", n=2), other()]`, where names and keys need not be Python's."""

    def __init__(self, text: str, names: list[str]) -> None:
        self._text = text
        self._names = names
        self._at = 1  # behind the bracket

    def read(self) -> list[Any]:
        """All calls; Rejected(`bad_tool_call`) if there is anything else."""
        found = []
        while True:
            name = _called(self._text, self._skip_space(), self._names)
            if name is None:
                raise Rejected("bad_tool_call", "a call of no declared tool")
            self._at += len(name) + 1
            found.append({"name": name, "arguments": self._arguments()})
            if self._next() == "]":
                break
        if self._text[self._at :].strip():
            raise Rejected("bad_tool_call", "text follows the calls")
        return found

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        while self._text[self._skip_space() : self._at + 1] != ")":
            equals = self._text.find("=", self._at)
            end = self._value_end(equals + 1)
            if equals < 0 or end is None:
                raise Rejected("bad_tool_call", "an argument without a name or an end")
            key = self._text[self._at : equals].strip()
            if _TOKEN.search(key):
                raise Rejected("bad_tool_call", "an argument without a name")
            arguments[key] = parse_loosely(self._text[equals + 1 : end], "bad_tool_call")
            self._at = end + (self._text[end] == ",")
        self._at += 1
        return arguments

    def _value_end(self, start: int) -> int | None:
        """Where the comma or bracket stands that ends the value at `start`."""
        depth = 0
        for token in _TOKEN.finditer(self._text, start):
            if token[0] in ("[", "(", "{"):
                depth += 1
            elif depth == 0 and token[0] in (",", ")"):
                return token.start()
            elif token[0] in ("]", ")", "}"):
                depth -= 1
        return None

    def _skip_space(self) -> int:
        self._at = _end_of_space(self._text, self._at)
        return self._at

    def _next(self) -> str:
        """The comma between calls, or the bracket behind the last."""
        token = self._text[self._skip_space() : self._at + 1]
        if token not in (",", "]") or not token:
            raise Rejected("bad_tool_call", "no comma between two calls")
        self._at += 1
        return token


def results(content: str) -> list[Result]:
    """The results in a tool turn: each `<tool_response>` block, or each object of a list of `{name, results}`.

    Any other content, and blocks with text around them, is one result as it is.
    """
    if "<tool_response>" in content:
        try:
            bodies, around = _blocks(content, "tool_response", "bad_tool_result")
        except Rejected:
            bodies, around = [], content
        if not around:
            return [Result(_result_name(body), body) for body in bodies]
    elif content.lstrip()[:1] == "[":
        listed = _listed_results(content)
        if listed:
            return listed
    return [Result(None, content)]


def _result_name(body: str) -> str | None:
    try:
        value = parse_loosely(body, "bad_tool_result")
    except Rejected:
        return None
    name = value.get("name") if isinstance(value, dict) and "content" in value else None
    return name if isinstance(name, str) and name else None


def _listed_results(content: str) -> list[Result]:
    try:
        values = parse(content, "bad_tool_result")
    except Rejected:
        return []
    found = []
    at = content.index("[") + 1
    for value in values:
        if not (isinstance(value, dict) and isinstance(value.get("name"), str) and "results" in value):
            return []
        at = content.index("{", at)
        _, end = _DECODER.raw_decode(content, at)
        found.append(Result(value["name"] or None, content[at:end]))
        at = end
    return found

"""Calls, results and thinking that datasets write inside text.

- Hermes (https://huggingface.co/datasets/NousResearch/hermes-function-calling-v1): `<tool_call>` in assistant turns,
  `<tool_response>` in tool turns; JSON, or Python literals.
- ToolACE (https://huggingface.co/datasets/Team-ACE/ToolACE): calls as `[Some Name(key="value", n=2)]`, results as
  `[{"name": ..., "results": ...}]`.
- Glaive v2 (https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2): calls as
  `<functioncall> {"name": "f", "arguments": '{"a": 1}'}`.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tools import parse, parse_loosely

_DECODER = json.JSONDecoder()


class Result(NamedTuple):
    """What a tool gave: its name where the text says it, and its content."""

    name: str | None
    content: str


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
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
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

"""Tools that a system text declares, and the system text without them.

- Hermes (https://huggingface.co/datasets/NousResearch/hermes-function-calling-v1), and templates like Qwen's: a
  `<tools>` block of a list, or of objects one after another; JSON, or Python literals where it was printed from Python.
- ToolACE (https://huggingface.co/datasets/Team-ACE/ToolACE): a JSON list after a sentence.
- Glaive v2 (https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2): JSON objects one after another,
  after a sentence.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tools import parse, parse_loosely

_MARKERS = (  # what a JSON list, or objects one after another, follow
    re.compile(r"Here is a list of functions in JSON format that you can invoke[:.]\s*"),
    re.compile(
        r"(?:You are a helpful assistant )?with access to the following functions\. Use them if required\s*-\s*"
    ),
)
_CALL = r"<tool_call>[^<]*(?:<(?!/tool_call>)[^<]*)*</tool_call>"
_CALL_SCHEMA = r"\{[^<]*?\}(?=\s*(?:For each function call|Each function call|\Z))"
# The words of the call protocols. Each goes with the declaration; any other text of a system prompt stays.
_WORDS = (
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
    r"Use the following pydantic model json schema for each tool call you will make:\s*" + _CALL_SCHEMA,
    r"For each function call,? return a json object (?:with function name and arguments )?within "
    r"<tool_call>\s*</tool_call> (?:XML )?tags(?: with the following schema| as follows)?[.:]?(?:\s*" + _CALL + ")?",
    r"For each function call return a JSON object, with the following pydantic model json schema(?: for each)?:\s*"
    + _CALL_SCHEMA,
    r"Each function call should be enclosed within <tool_call>\s*</tool_call> XML tags\.",
    r"You must use <scratch_pad>\s*</scratch_pad> XML tags to record your reasoning and planning before you call the "
    r"functions as follows\.",
    r"Example:\s*(?:<scratch_pad>[^<]*</scratch_pad>\s*)?" + _CALL,
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
_PROTOCOL = re.compile(r"(?:" + "|".join(_WORDS) + r")\s*")
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
        for value, value_end in _json_spans(system, start, only="[{"):
            end = value_end
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
        except ValueError as error:  # whose text differs by Python's version
            raise Rejected("bad_tools", "the tools in the system text are no JSON") from error
        yield at, end
        at = end


def _end_of_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches the empty string
    return match.end()

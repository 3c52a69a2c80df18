"""Tools inside system texts: taken out once, with the words of their protocol and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.sources.rejects import Rejected
from workflow_scripts.sources.tool_declarations import declared
from workflow_scripts.sources.tools import read_tools

BELL = {"type": "function", "function": {"name": "bell", "parameters": {"type": "object", "properties": {}}}}
BARE = {"name": "bell", "parameters": {}}
QWEN = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function call, return a json "
    "object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


@pytest.mark.parametrize(
    ("system", "count", "rest"),
    [
        (QWEN.format(json.dumps(BELL)), 1, ""),
        ("You are Kim.\n\n" + QWEN.format(json.dumps(BELL) + "\n" + json.dumps(BELL)), 2, "You are Kim."),
        (QWEN.format(str(BELL) + "\n" + str(BELL)), 2, ""),
        ("Be <b>kind</b>. <tools>[]</tools> Bye.", 0, "Be <b>kind</b>.  Bye."),
        (f"<tools>{json.dumps([BARE])}</tools>Use the tools well.", 1, "Use the tools well."),
        ("with access to the following functions. Use them if required -\n", 0, ""),
        (
            f"Kim, with access to the following functions. Use them if required -\n{json.dumps(BARE, indent=4)}\n\n"
            f"{json.dumps(BARE)}\n\nSpeak [up].",
            2,
            "Kim, \n\nSpeak [up].",
        ),
        (
            f"Here is a list of functions in JSON format that you can invoke:\n{json.dumps([BARE])}. {{more}}",
            1,
            "{more}",
        ),
    ],
)
def test_declared(system: str, count: int, rest: str) -> None:
    found = declared(system)
    assert found is not None
    assert (read_tools(found.tools()), found.rest) == ([BELL] * count or None, rest)


@pytest.mark.parametrize(
    "system",
    [
        "",
        "Write <tools> </tools> around tools.",
        "<tools>a hammer</tools>",
        "<tools>[",
        "You are a function calling AI model.",
        "with access to the following functions. Use them if required - none of them",
    ],
)
def test_nothing_declared(system: str) -> None:
    assert declared(system) is None


@pytest.mark.parametrize("body", ["[", "{'a': ", "[]]", "{}\n{"])
def test_a_declaration_that_can_not_be_read(body: str) -> None:
    found = declared(f"<tools>{body}</tools>")
    assert found is not None
    with pytest.raises(Rejected, match="bad_tools"):
        found.tools()
    with pytest.raises(Rejected, match="bad_tools"):
        declared('Use them if required - with access to the following functions. Use them if required -\n{"a": ')


pieces = st.sampled_from(
    ["<tools>", "</tools>", "[", "]", "{", "}", '"', "'", "\\", "name", ":", "1", " ", "\n", json.dumps(BARE),
     "# Tools ", "Here is a list of functions in JSON format that you can invoke:",
     "You are a function calling AI model.",
     "with access to the following functions. Use them if required -", "For each function call return a json object"]
)  # fmt: skip


@given(text=st.lists(pieces | st.text(max_size=3), max_size=12).map("".join))
def test_no_text_raises_anything_but_a_reject(text: str) -> None:
    try:
        found = declared(text)
        if found is not None:
            read_tools(found.tools())
    except Rejected as why:
        assert why.kind == "bad_tools"


@given(before=st.text(alphabet="abc .\n"), after=st.text(alphabet="abc .\n"))
def test_other_text_of_the_system_prompt_stays(before: str, after: str) -> None:
    found = declared(f"{before}<tools>[]</tools>{after}")
    assert found is not None
    assert found.rest == (before + after).strip()

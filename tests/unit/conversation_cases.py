"""Made-up conversations in the shapes of well-known datasets, what a scripted model says, and the requests that follow.

A message is noted as `s: text`, `u: text`, `a: text`, with ` | thoughts` and ` ! id name arguments` for each call, and
`t: id = text`. A reply is noted likewise without the `a: `; its calls get the ids n0, n1, ... in the conversation's
order. Expected is what each request adds to the one before it.
"""

import json
from typing import Any, NamedTuple

from workflow_scripts.config import Shape

ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo"}'
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells it.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NEWS = {"type": "function", "function": {"name": "news", "description": "N.", "parameters": {"type": "object"}}}
BARE = TOOL["function"]
HERMES = f"You are a function calling AI model.\n<tools>{json.dumps([TOOL])}</tools>"
GLAIVE = f"SYSTEM: You are kind, with access to the following functions. Use them if required -\n{json.dumps(BARE)}"
TOOLACE = (
    "You compose functions. Here is a list of functions in JSON format that you can invoke:\n"
    f"{json.dumps([BARE])}. Should you decide to return the function call(s), Put it in the format of [f(a=b)]"
)


def sharegpt(*turns: tuple[str, str], **columns: Any) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": text} for role, text in turns], **columns}


def messages(*turns: Any, **columns: Any) -> dict[str, Any]:
    """Pairs of role and content; a mapping is a message as it is."""
    as_is = [turn if isinstance(turn, dict) else {"role": turn[0], "content": turn[1]} for turn in turns]
    return {"messages": as_is, **columns}


def calling(*calls: tuple[str, str, Any], content: str | None = "") -> dict[str, Any]:
    """An assistant's message with calls: (id, name, arguments)."""
    said = [{"id": i, "type": "function", "function": {"name": name, "arguments": given}} for i, name, given in calls]
    return {"role": "assistant", "content": content, "tool_calls": said}


def result(call_id: str, content: str, **more: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def hermes_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Case(NamedTuple):
    name: str
    shape: Shape
    row: Any
    replies: list[str]
    requests: list[list[str]]
    ended: str = "complete"
    tools: tuple[str, ...] = ()
    marks: frozenset[str] = frozenset()


TWO_CALLS = calling(("x", "weather", ROME), ("y", "weather", OSLO))
LOOP = [("user", "Compare."), TWO_CALLS, result("x", "sun"), result("y", "ice"), ("assistant", "Rome.")]

CASES = [
    # ShareGPT: turns of humans and models, sometimes odd.
    Case("one question", "sharegpt", sharegpt(("human", "Q"), ("gpt", "old")), ["A"], [["u: Q"]]),
    Case("no answer recorded", "sharegpt", sharegpt(("human", "Q")), ["A"], [["u: Q"]]),
    Case(
        "three questions",
        "sharegpt",
        sharegpt(("human", "1"), ("gpt", "x"), ("human", "2"), ("gpt", "y"), ("human", "3"), ("gpt", "z")),
        ["A", "B", "C"],
        [["u: 1"], ["a: A", "u: 2"], ["a: B", "u: 3"]],
    ),
    Case(
        "a last question without an answer",
        "sharegpt",
        sharegpt(("system", "S"), ("human", "1"), ("gpt", "x"), ("human", "2")),
        ["A", "B"],
        [["s: S", "u: 1"], ["a: A", "u: 2"]],
    ),
    Case(
        "the model begins",
        "sharegpt",
        sharegpt(("gpt", "Hello!"), ("human", "1"), ("gpt", "x")),
        ["A"],
        [["u: 1"]],
    ),
    Case(
        "two questions in a row, and two answers",
        "sharegpt",
        sharegpt(("human", "1"), ("human", "2"), ("gpt", "x"), ("gpt", "y"), ("human", "3"), ("human", "4")),
        ["A", "B"],
        [["u: 1", "u: 2"], ["a: A", "u: 3", "u: 4"]],
    ),
    Case(
        "thoughts go back as they came",
        "sharegpt",
        sharegpt(("human", "1"), ("gpt", "<think>\nold\n</think>\n\nx"), ("human", "2"), ("gpt", "y")),
        ["A | hm", "B | so"],
        [["u: 1"], ["a: A | hm", "u: 2"]],
    ),
    Case("strings", "alternating_strings", {"data": ["1", "x", "2", "y"]}, ["A", "B"], [["u: 1"], ["a: A", "u: 2"]]),
    Case("alpaca", "alpaca", {"instruction": "Sum", "input": "1 2", "output": "3"}, ["A"], [["u: Sum\n\n1 2"]]),
    # OpenAssistant: a tree's best thread.
    Case(
        "a tree",
        "message_tree",
        [
            {"message_id": "r", "parent_id": None, "role": "prompter", "text": "1", "rank": None},
            {"message_id": "b", "parent_id": "r", "role": "assistant", "text": "worse", "rank": 1},
            {"message_id": "a", "parent_id": "r", "role": "assistant", "text": "better", "rank": 0},
            {"message_id": "c", "parent_id": "a", "role": "prompter", "text": "2", "rank": 0},
        ],
        ["A", "B"],
        [["u: 1"], ["a: A", "u: 2"]],
    ),
    # Hermes: tools in the system text, calls and results as text.
    Case(
        "hermes, one call",
        "sharegpt",
        sharegpt(
            ("system", HERMES),
            ("human", "Rome?"),
            ("gpt", hermes_call("weather", ROME)),
            ("tool", '<tool_response>\n{"name": "weather", "content": "sun"}\n</tool_response>'),
            ("gpt", "Sun."),
        ),
        [f"! weather {ROME}", "It is sunny."],
        [
            ["u: Rome?"],
            [f"a:  ! n0 weather {ROME}", 't: n0 = {"name": "weather", "content": "sun"}'],
        ],
        tools=("weather",),
    ),
    Case(
        "hermes, two calls at once, answered in the other order",
        "sharegpt",
        sharegpt(
            ("system", HERMES),
            ("human", "Both?"),
            ("gpt", hermes_call("weather", ROME) + "\n" + hermes_call("weather", OSLO)),
            ("tool", "<tool_response>\nsun\n</tool_response>\n<tool_response>\nice\n</tool_response>"),
            ("gpt", "Sun, ice."),
        ),
        [f"! weather {OSLO} ! weather {ROME}", "Ice and sun."],
        [
            ["u: Both?"],
            [f"a:  ! n0 weather {OSLO} ! n1 weather {ROME}", "t: n0 = ice", "t: n1 = sun"],
        ],
        tools=("weather",),
    ),
    Case(
        "hermes, no call is made",
        "sharegpt",
        sharegpt(
            ("system", HERMES),
            ("human", "Rome?"),
            ("gpt", hermes_call("weather", ROME)),
            ("tool", "<tool_response>\nsun\n</tool_response>"),
            ("gpt", "Sun."),
            ("human", "Thanks."),
        ),
        ["I don't know.", "Sorry."],
        [["u: Rome?"], ["a: I don't know.", "u: Thanks."]],
        tools=("weather",),
        marks=frozenset(["no_call"]),
    ),
    Case(
        "hermes, a call that can't be read has no result to replay",
        "sharegpt",
        sharegpt(
            ("system", HERMES),
            ("human", "Rome?"),
            ("gpt", "<tool_call>\n{broken\n</tool_call>"),
            ("tool", "<tool_response>\nsun\n</tool_response>"),
        ),
        [f"! weather {ROME}"],
        [["u: Rome?"]],
        ended="tool_call",
        tools=("weather",),
    ),
    # Glaive: one text, calls as <functioncall>.
    Case(
        "glaive",
        "transcript_string",
        {
            "system": GLAIVE,
            "chat": f'USER: Rome?\n\n\nASSISTANT: <functioncall> {{"name": "weather", "arguments": \'{ROME}\'}} '
            "<|endoftext|>\n\n\nFUNCTION RESPONSE: sun\n\n\nASSISTANT: Sun. <|endoftext|>\n\n\nUSER: And now?\n\n\n"
            "ASSISTANT: Still. <|endoftext|>",
        },
        [f"! weather {ROME}", "Sunny.", "Yes."],
        [
            ["s: You are kind,", "u: Rome?"],
            [f"a:  ! n0 weather {ROME}", "t: n0 = sun"],
            ["a: Sunny.", "u: And now?"],
        ],
        tools=("weather",),
    ),
    Case(
        "glaive, the model asks back",
        "transcript_string",
        {
            "system": GLAIVE,
            "chat": "USER: Weather?\n\n\nASSISTANT: Where? <|endoftext|>\n\n\nUSER: Rome.\n\n\n"
            f'ASSISTANT: <functioncall> {{"name": "weather", "arguments": \'{ROME}\'}} <|endoftext|>\n\n\n'
            "FUNCTION RESPONSE: sun\n\n\nASSISTANT: Sun. <|endoftext|>",
        },
        ["In which city?", f"! weather {ROME}", "Sun."],
        [
            ["s: You are kind,", "u: Weather?"],
            ["a: In which city?", "u: Rome."],
            [f"a:  ! n0 weather {ROME}", "t: n0 = sun"],
        ],
        tools=("weather",),
    ),
    # xLAM: a query, tools and the calls expected; no results.
    Case(
        "xlam",
        "tools_query_answers",
        {
            "query": "Rome?",
            "tools": json.dumps([{"name": "weather", "description": "d", "parameters": {"city": {"type": "str"}}}]),
            "answers": json.dumps([{"name": "weather", "arguments": {"city": "Rome"}}]),
        },
        [f"! weather {ROME}"],
        [["u: Rome?"]],
        ended="tool_call",
        tools=("weather",),
    ),
    Case(
        "xlam, answered in words",
        "tools_query_answers",
        {"query": "Hi", "tools": "[]", "answers": "[]"},
        ["Hello."],
        [["u: Hi"]],
    ),
    # ToolACE: calls in Python's style.
    Case(
        "toolace",
        "sharegpt",
        sharegpt(
            ("user", "Rome?"),
            ("assistant", '[weather(city="Rome")]'),
            ("tool", '[{"name": "weather", "results": {"sky": "sun"}}]'),
            ("assistant", "Sun."),
            system=TOOLACE,
        ),
        [f"! weather {ROME}", "Sun."],
        [
            ["s: You compose functions.", "u: Rome?"],
            [f"a:  ! n0 weather {ROME}", 't: n0 = {"name": "weather", "results": {"sky": "sun"}}'],
        ],
        tools=("weather",),
    ),
    # Calls and results as the chat API has them.
    Case(
        "two calls at once, each result under the new call's id",
        "messages",
        messages(*LOOP, tools=[TOOL]),
        [f"! weather {ROME} ! weather {OSLO}", "Rome is warmer."],
        [["u: Compare."], [f"a:  ! n0 weather {ROME} ! n1 weather {OSLO}", "t: n0 = sun", "t: n1 = ice"]],
        tools=("weather",),
    ),
    Case(
        "one after the other, though recorded at once",
        "messages",
        messages(*LOOP, tools=[TOOL]),
        [f"! weather {OSLO}", f"! weather {ROME}", "Rome."],
        [
            ["u: Compare."],
            [f"a:  ! n0 weather {OSLO}", "t: n0 = ice"],
            [f"a:  ! n1 weather {ROME}", "t: n1 = sun"],
        ],
        tools=("weather",),
    ),
    Case(
        "at once, though recorded one after the other",
        "messages",
        messages(
            ("user", "Compare."),
            calling(("x", "weather", ROME)),
            result("x", "sun"),
            calling(("x", "weather", OSLO)),  # the same id again
            result("x", "ice"),
            ("assistant", "Rome."),
            tools=[TOOL],
        ),
        [f"! weather {OSLO} ! weather {ROME}", "Rome."],
        [["u: Compare."], [f"a:  ! n0 weather {OSLO} ! n1 weather {ROME}", "t: n0 = ice", "t: n1 = sun"]],
        tools=("weather",),
    ),
    Case(
        "arguments are compared as JSON",
        "messages",
        messages(
            ("user", "Q"),
            calling(("x", "news", {"of": 1, "in": ["a"]}), ("y", "news", {"of": True, "in": ["a"]})),
            result("x", "one"),
            result("y", "true"),
            tools=[NEWS],
        ),
        ['! news {"in": ["a"], "of": true} ! news {"in":["a"],"of":1.0}', "A"],
        [
            ["u: Q"],
            ['a:  ! n0 news {"in": ["a"], "of": true} ! n1 news {"in":["a"],"of":1.0}', "t: n0 = true", "t: n1 = one"],
        ],
        tools=("news",),
    ),
    Case(
        "by name, where arguments differ, in the recorded order; an exact one chooses first",
        "messages",
        messages(*LOOP, tools=[TOOL]),
        [f'! weather {{"city": "Roma"}} ! weather {ROME}', "Rome."],
        [["u: Compare."], [f'a:  ! n0 weather {{"city": "Roma"}} ! n1 weather {ROME}', "t: n0 = ice", "t: n1 = sun"]],
        tools=("weather",),
        marks=frozenset(["other_arguments"]),
    ),
    Case(
        "of two calls one has no result",
        "messages",
        messages(*LOOP[:2], result("x", "sun"), tools=[TOOL]),
        [f"! weather {ROME} ! weather {OSLO}"],
        [["u: Compare."]],
        ended="tool_call",
        tools=("weather",),
    ),
    Case(
        "another tool than was recorded",
        "messages",
        messages(*LOOP, tools=[TOOL, NEWS]),
        ['I look. ! news {"of": 1}'],
        [["u: Compare."]],
        ended="tool_call",
        tools=("weather", "news"),
    ),
    Case(
        "a third call where two were recorded",
        "messages",
        messages(*LOOP, ("user", "Go on."), tools=[TOOL]),
        [f"! weather {ROME} ! weather {OSLO}", f"! weather {ROME}"],
        [["u: Compare."], [f"a:  ! n0 weather {ROME} ! n1 weather {OSLO}", "t: n0 = sun", "t: n1 = ice"]],
        ended="tool_call",
        tools=("weather",),
    ),
    Case(
        "a later question's results are not for an earlier one",
        "messages",
        messages(("user", "1"), ("assistant", "x"), *LOOP, tools=[TOOL]),
        [f"! weather {ROME}"],
        [["u: 1"]],
        ended="tool_call",
        tools=("weather",),
    ),
    Case(
        "a result that comes after the user spoke again",
        "messages",
        messages(
            ("user", "1"),
            calling(("x", "weather", ROME)),
            ("user", "Hurry."),
            result("x", "sun"),
            ("assistant", "Sun."),
            tools=[TOOL],
        ),
        [f"! weather {ROME}", "Sun.", "Here."],
        [["u: 1"], [f"a:  ! n0 weather {ROME}", "t: n0 = sun"], ["a: Sun.", "u: Hurry."]],
        tools=("weather",),
    ),
    Case(
        "a result names its tool itself",
        "messages",
        messages(("user", "1"), ("assistant", "calling..."), result("?", "sun", name="weather"), tools=[TOOL]),
        [f"! weather {ROME}", "Sun."],
        [["u: 1"], [f"a:  ! n0 weather {ROME}", "t: n0 = sun"]],
        tools=("weather",),
        marks=frozenset(["other_arguments"]),
    ),
    # CoderForge and agentic coding: long loops of one tool, thoughts beside the calls.
    Case(
        "a coding loop",
        "messages_json_string",
        {
            "messages": json.dumps(
                [
                    {"role": "system", "content": "You fix bugs."},
                    {"role": "user", "content": "Fix it."},
                    calling(("1", "weather", '{"command": "ls"}'), content="I look around."),
                    result("1", "a.py"),
                    calling(("2", "weather", '{"command": "cat a.py"}'), content=None),
                    result("2", "x = 1"),
                    {"role": "assistant", "content": "Done."},
                ]
            ),
            "tools": json.dumps([TOOL]),
        },
        ['Look. | hm ! weather {"command":"ls"}', '| so ! weather {"command":"cat a.py"}', "Done."],
        [
            ["s: You fix bugs.", "u: Fix it."],
            ['a: Look. | hm ! n0 weather {"command":"ls"}', "t: n0 = a.py"],
            ['a:  | so ! n1 weather {"command":"cat a.py"}', "t: n1 = x = 1"],
        ],
        tools=("weather",),
    ),
    Case(
        "a trajectory that ends inside its loop",
        "messages",
        messages(("user", "Fix."), calling(("1", "weather", ROME)), result("1", "sun"), tools=[TOOL]),
        [f"! weather {ROME}", "Done."],
        [["u: Fix."], [f"a:  ! n0 weather {ROME}", "t: n0 = sun"]],
        tools=("weather",),
    ),
    # Odd ones.
    Case(
        "one call, twice over, with results of their own",
        "messages",
        messages(
            ("user", "Roll."),
            calling(("x", "weather", ROME), ("y", "weather", ROME)),
            result("x", "first"),
            result("y", "second"),
            tools=[TOOL],
        ),
        [f"! weather {ROME} ! weather {ROME}", "A"],
        [["u: Roll."], [f"a:  ! n0 weather {ROME} ! n1 weather {ROME}", "t: n0 = first", "t: n1 = second"]],
        tools=("weather",),
    ),
    Case(
        "two results of one call are replayed one after the other",
        "messages",
        messages(("user", "Q"), calling(("x", "weather", ROME)), result("x", "busy"), result("x", "sun"), tools=[TOOL]),
        [f"! weather {ROME}", f"! weather {ROME}", "Sun."],
        [
            ["u: Q"],
            [f"a:  ! n0 weather {ROME}", "t: n0 = busy"],
            [f"a:  ! n1 weather {ROME}", "t: n1 = sun"],
        ],
        tools=("weather",),
    ),
    Case(
        "of two results of one call, one is left",
        "messages",
        messages(("user", "Q"), calling(("x", "weather", ROME)), result("x", "busy"), result("x", "sun"), tools=[TOOL]),
        [f"! weather {ROME}", "Busy."],
        [["u: Q"], [f"a:  ! n0 weather {ROME}", "t: n0 = busy"]],
        tools=("weather",),
        marks=frozenset(["no_call"]),
    ),
    Case(
        "a result without any call is none to replay",
        "messages",
        messages(("user", "1"), ("assistant", "x"), result("?", "sun"), ("user", "2"), tools=[TOOL]),
        [f"! weather {ROME}"],
        [["u: 1"]],
        ended="tool_call",
        tools=("weather",),
    ),
    Case(
        "a result before any assistant turn goes to the server as it is, which refuses it",
        "messages",
        messages(("user", "1"), result("?", "sun"), ("assistant", "x"), tools=[TOOL]),
        ["A"],
        [["u: 1", "t: ? = sun"]],
        tools=("weather",),
    ),
    Case(
        "a call without a result",
        "messages",
        messages(("user", "1"), calling(("x", "weather", ROME)), ("user", "2"), ("assistant", "x"), tools=[TOOL]),
        [f"! weather {ROME}"],
        [["u: 1"]],
        ended="tool_call",
        tools=("weather",),
    ),
    Case(
        "recorded arguments that are no JSON are compared as text",
        "messages",
        messages(
            ("user", "Q"),
            calling(("x", "weather", "Rome"), ("y", "weather", ROME)),
            result("x", "text"),
            result("y", "object"),
            tools=[TOOL],
        ),
        [f"! weather {ROME} ! weather Rome", "A"],
        [["u: Q"], [f"a:  ! n0 weather {ROME} ! n1 weather Rome", "t: n0 = object", "t: n1 = text"]],
        tools=("weather",),
    ),
    Case(
        "arguments as an object, null, and none at all",
        "messages",
        messages(
            ("user", "Q"),
            calling(("x", "news", None), ("y", "news", {"of": 1}), ("z", "news", "")),
            result("x", "none"),
            result("y", "one"),
            result("z", "nothing"),
            tools=[NEWS],
        ),
        ['! news {} ! news {"of":1} ! news {}', "A"],
        [
            ["u: Q"],
            ['a:  ! n0 news {} ! n1 news {"of":1} ! n2 news {}', "t: n0 = none", "t: n1 = one", "t: n2 = nothing"],
        ],
        tools=("news",),
    ),
    Case(
        "recorded turns that say nothing",
        "messages",
        messages(
            ("user", "1"), ("assistant", ""), ("assistant", None), ("user", "2"), ("assistant", ""), ("user", "3")
        ),
        ["A", "B", "C"],
        [["u: 1"], ["a: A", "u: 2"], ["a: B", "u: 3"]],
    ),
    Case(
        "an empty result",
        "messages",
        messages(("user", "Q"), calling(("x", "weather", ROME)), result("x", ""), tools=[TOOL]),
        [f"! weather {ROME}", "A"],
        [["u: Q"], [f"a:  ! n0 weather {ROME}", "t: n0 = "]],
        tools=("weather",),
    ),
    Case(
        "calls in a conversation without tools go nowhere",
        "messages",
        messages(("user", "Q"), calling(("x", "weather", ROME)), result("x", "sun"), ("assistant", "Sun.")),
        ["I can't look."],
        [["u: Q"]],
        marks=frozenset(["no_call"]),
    ),
    Case(
        "a model that gives up at once",
        "messages",
        messages(
            ("user", "Fix."), calling(("1", "weather", ROME)), result("1", "sun"), ("user", "Go on."), tools=[TOOL]
        ),
        ["", "never asked"],
        [["u: Fix."]],
        ended="broken_turn",
        tools=("weather",),
        marks=frozenset(["no_call"]),
    ),
]

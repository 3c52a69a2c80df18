"""Histories with thoughts and calls under Qwen3's and Qwen3.6's rules, and drift of what is stored from what was seen.

The templates are tests/data/templates/qwen3.jinja and qwen3_6.jinja, written after the published ones' behaviour; a
scripted server renders by them as SGLang does, and parses what a script says.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.standin.tiny_tokenizer import make_tokenizer
from tests.unit.test_completions import prompt
from workflow_scripts.completions.conversation import Conversation
from workflow_scripts.completions.faults import Fault
from workflow_scripts.completions.packing import unpack
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.config import Sampling
from workflow_scripts.prompts.rendering import Refused, encode, render
from workflow_scripts.records import Completion, Message, Prompt
from workflow_scripts.reporting.drift import drift

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL: Any = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
RECORDED: list[Message] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Old."},
    {"role": "user", "content": "Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "sun", "tool_call_id": "x"},
    {"role": "assistant", "content": "Old sun."},
    {"role": "user", "content": "Thanks."},
]
# Thoughts, content and calls of each reply.
SCRIPT = [("greet", "Hi.", []), ("look", "", [CALL | {"id": "n"}]), ("tell", "Sun.", []), ("end", "Bye.", [])]


@pytest.fixture(scope="module", params=["qwen3", "qwen3_6"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = make_tokenizer(tmp_path_factory.mktemp(request.param) / "tokenizer", request.param)
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    loaded.init_kwargs["name"] = request.param
    return loaded


def seen_by_template(tokenizer: Any, body: dict[str, Any]) -> str:
    """What transformers makes of a request's messages, as SGLang hands them over."""
    messages = copy.deepcopy(body["messages"])
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    tools = [
        {"type": "function", "function": tool["function"] | {"description": None}, "defer_loading": None}
        for tool in body["tools"]
    ]
    kwargs = body.get("chat_template_kwargs", {})
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False, **kwargs
    )
    return text


def played(tokenizer: Any, **sampling: Any) -> tuple[list[str], Completion]:
    """The prompts of each turn as texts, and the completion, of the script."""
    asked: Prompt = {**prompt(), "messages": RECORDED, "tools": [TOOL]}
    conversation = Conversation(asked, 0, Sampling.model_validate(sampling))
    texts: list[str] = []
    for thoughts, content, calls in SCRIPT:
        texts.append(seen_by_template(tokenizer, conversation.request("m", "r")))
        prompt_ids = encode(tokenizer, texts[-1])
        called = "".join(f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls)
        response_ids = encode(tokenizer, f"<think>\n{thoughts}\n</think>\n\n{content}{called}<|im_end|>")
        choice = {
            "message": {"content": content, "reasoning_content": f"\n{thoughts}\n", "tool_calls": calls or None},
            "finish_reason": "tool_calls" if calls else "stop",
            "prompt_token_ids": prompt_ids,
            "response_token_ids": response_ids,
        }
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(response_ids)}
        conversation.take({"id": "r", "choices": [choice], "usage": usage}, "r", Answerer("s"), 1, 0.0)
    assert conversation.ended == "complete"
    completion = conversation.completion()
    return texts, {**completion, "turns": unpack(completion["turns"])}


def test_thoughts_go_back_as_the_template_keeps_them(tokenizer: Any) -> None:
    texts, completion = played(tokenizer, thinking=True)
    kept = [[thoughts for thoughts, _, _ in SCRIPT if f"\n{thoughts}\n" in text] for text in texts]
    # Dropped before the last question, kept inside the loop that follows it.
    assert kept == [[], [], ["look"], []]
    stored = [
        message["reasoning_content"].strip() for message in completion["messages"] if message["role"] == "assistant"
    ]
    assert stored == ["greet", "look", "tell", "end"]  # the record has all


def test_preserved_thoughts_all_go_back(tokenizer: Any) -> None:
    texts, completion = played(tokenizer, template={"preserve_thinking": True})
    kept = [[thoughts for thoughts, _, _ in SCRIPT if f"\n{thoughts}\n" in text] for text in texts]
    if tokenizer.init_kwargs["name"] == "qwen3_6":
        assert kept == [[], ["greet"], ["greet", "look"], ["greet", "look", "tell"]]
    else:  # which does not know the word
        assert kept == [[], [], ["look"], []]
    assert not any(drift(tokenizer, completion, number) for number in range(4))


@pytest.mark.parametrize("thinking", [True, False, None])
def test_what_is_stored_renders_to_what_was_seen(tokenizer: Any, thinking: bool | None) -> None:
    texts, completion = played(tokenizer, thinking=thinking)
    endings: dict[str, dict[bool | None, str]] = {
        "qwen3": {False: "assistant\n<think>\n\n</think>\n\n"},
        "qwen3_6": {
            False: "assistant\n<think>\n\n</think>\n\n",
            True: "assistant\n<think>\n",
            None: "assistant\n<think>\n",
        },
    }
    for text in texts:
        assert text.endswith(endings[tokenizer.init_kwargs["name"]].get(thinking, "assistant\n"))
        assert text.count("<tools>") == 1 and text.count('"defer_loading": null') == 1
    assert [drift(tokenizer, completion, number) for number in range(4)] == [[]] * 4


def test_drift_is_told(tokenizer: Any) -> None:
    _, completion = played(tokenizer, thinking=True)

    def changed(place: int, **changes: Any) -> Completion:
        other = copy.deepcopy(completion)
        other["messages"][place].update(changes)  # type: ignore[typeddict-item]
        return other

    assert [message["role"] for message in completion["messages"]][4] == "assistant"
    text = changed(2, content="Another greeting.")
    assert [drift(tokenizer, text, number) for number in range(4)] == [["text"], ["prompt"], ["prompt"], ["prompt"]]
    # Of the thoughts in the loop, only the next turn's prompt has anything.
    thoughts = changed(4, reasoning_content="other")
    assert [drift(tokenizer, thoughts, number) for number in range(4)] == [[], ["text"], ["prompt"], []]
    broken = changed(4, tool_calls=[{**CALL, "function": {"name": "weather", "arguments": "[no"}}])
    assert drift(tokenizer, broken, 2) == ["prompt"]
    other_tools: Any = copy.deepcopy(completion) | {"tools": None}
    assert drift(tokenizer, other_tools, 0) == ["prompt"]


def test_tools_are_shown_as_tool_choice_lets_them(tokenizer: Any) -> None:
    _, completion = played(tokenizer)
    turn = completion["turns"][0]
    for choice, tools in (("none", None), ({"type": "function", "function": {"name": "weather"}}, [TOOL])):
        turn["sampling"]["tool_choice"] = choice
        text = render(tokenizer, completion["messages"][:2], tools, {})
        turn["prompt_token_ids"] = encode(tokenizer, text)
        assert drift(tokenizer, completion, 0) == []


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (
            [{"role": "user", "content": "Q"}, {"role": "system", "content": "S"}],
            "System message must be at the beginning",
        ),
        ([{"role": "system", "content": "S"}], "No user query found"),
    ],
)
def test_a_template_that_refuses_says_why(tmp_path: Path, messages: list[Message], says: str) -> None:
    strict: Any = AutoTokenizer.from_pretrained(make_tokenizer(tmp_path / "t", "qwen3_6"))
    with pytest.raises(Refused, match=says):
        render(strict, messages, None, {})


def test_a_refusal_on_the_way_keeps_what_was_made(tmp_path: Path) -> None:
    strict: Any = AutoTokenizer.from_pretrained(make_tokenizer(tmp_path / "t", "llama_like"))
    recorded: list[Message] = [RECORDED[1], RECORDED[2], RECORDED[3], RECORDED[7]]  # two users in a row, later
    conversation = Conversation({**prompt(), "messages": recorded}, 0, Sampling())
    body = conversation.request("m", "r")
    ids = encode(strict, render(strict, body["messages"], None, {}))
    choice = {
        "message": {"content": "Hi."},
        "finish_reason": "stop",
        "prompt_token_ids": ids,
        "response_token_ids": [1],
    }
    usage = {"prompt_tokens": len(ids), "completion_tokens": 1}
    conversation.take({"id": "r", "choices": [choice], "usage": usage}, "r", Answerer("s"), 1, 0.0)
    with pytest.raises(Refused) as refusal:
        render(strict, conversation.request("m", "r")["messages"], None, {})
    assert conversation.stop(Fault("refused", str(refusal.value)))
    completion = conversation.completion()
    assert completion["ended"] == "refused" and completion["ended_reason"] == str(refusal.value) != ""
    assert len(completion["turns"]) == 1

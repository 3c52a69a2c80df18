"""Whole conversations on the real SGLang with the tiny thinking Qwen3, against transformers' rendering of each history.

One run of one server: each source is a case.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoTokenizer

from tests.integration.real_project import SECONDS, completions, real
from tests.integration.tiny_qwen3 import AS_SENT, QUESTIONS, TOOL
from tests.standin.project import Project
from workflow_scripts import files
from workflow_scripts.serving.environment import Environment

ASKED = [QUESTIONS["math"][0], QUESTIONS["chat"][0], QUESTIONS["code"][0]]
LABELS = ["math", "chat", "code"]
Row = dict[str, Any]


def talk(*questions: str) -> list[Row]:
    return [
        message
        for text in questions
        for message in ({"role": "user", "content": text}, {"role": "assistant", "content": "?"})
    ]


def weather(*cities: str, recorded: tuple[str, ...] | None = None) -> Row:
    """A question about cities, with the results of calls for the recorded ones; another question at its end."""
    calls = [
        {"id": city, "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        for city in (recorded if recorded is not None else cities)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"sun of {call['id']}"} for call in calls]
    called = [{"role": "assistant", "content": "", "tool_calls": calls}] if calls else []
    asked = {"role": "user", "content": f"weather in {' and '.join(cities)}"}
    return {"messages": [asked, *called, *results, {"role": "assistant", "content": "?"}], "tools": [TOOL]}


# As a dataset has it, and as SGLang shows it to the model.
ODD_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "returns": {"type": "str"},
        "parameters": {"type": "dict", "properties": {"city": {"type": "varchar(20)"}, "days": {"type": "int"}}},
    },
}
ODD_AS_SENT = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        "description": None,
    },
    "defer_loading": None,
}

SOURCES: dict[str, list[Row]] = {
    "thinking": [{"messages": talk(*ASKED)}],
    "direct": [{"messages": talk(*reversed(ASKED))}],
    "tool": [weather("rome"), weather("oslo", recorded=("rome", "oslo", "rome"))],
    "tools_direct": [weather("rome", "oslo", recorded=("oslo", "rome"))],
    "tools": [weather("rome", "oslo")],
    "diverging": [weather("rome", "oslo", recorded=("rome",))],
    "cut": [{"messages": talk(*ASKED[1:])}],
    "refused": [{"messages": [{"role": "user", "content": text} for text in ASKED]}],
    "odd_tool": [{"messages": talk(ASKED[0]), "tools": [ODD_TOOL]}],
    "later": [{"messages": [*talk(ASKED[1]), *({"role": "user", "content": text} for text in ASKED[1:])]}],
    "long": [{"messages": [*talk(ASKED[0]), *talk("word " * 1100)]}],
}
DIRECT = ("direct", "tools_direct")


@pytest.fixture(scope="module")
def made(tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = real(tmp_path_factory.mktemp("conversations"), str(tiny_qwen3), "conversations")
    project.config["sources"] = {}
    for name, rows in SOURCES.items():
        project.write_rows(name, rows)
        project.config["sources"][name] = {"path": f"data/{name}.jsonl", "shape": "messages"}
    project.config["prompts"] = {"turns": "all"}
    project.config["chunks"] = {"count": 1}
    own = {name: {"thinking": False} for name in DIRECT} | {"cut": {"max_tokens": 5}}
    project.config["sampling"] = {"temperature": 0.0, "max_tokens": 100, "thinking": True, "by_source": own}
    project.config["training"] |= {"draft_vocabulary": 64}
    project.config["servers"]["args"] |= {"reasoning-parser": "qwen3", "tool-call-parser": "qwen25"}
    try:
        result = project.start().wait(SECONDS)
        assert result.code == 0, result.output
        yield project
    finally:
        project.end_processes()


@pytest.fixture(scope="module")
def rows(made: Project) -> dict[str, list[Row]]:
    """The completions of each source."""
    found: dict[str, list[Row]] = {name: [] for name in SOURCES}
    for row in completions(made.made):
        found[row["source"]].append(row)
    return found


def said(row: Row) -> list[Row]:
    return [message for message in row["messages"] if message["role"] == "assistant"]


def test_the_run_accounts_for_itself(made: Project) -> None:
    made.audit()
    summary = files.read_json(made.made.summary)
    assert summary["failure_classes"] == {"refused": 1}
    assert summary["checked"]["turns"] == summary["turns"] and not any(summary["checked"]["drift"].values())
    assert summary["refused"]["refused"]["says"] == [
        "Conversation roles must alternate user/assistant/user/assistant/..."
    ]
    assert summary["refused"]["later"]["prompts"] == 1
    assert summary["alarms"] == [] and "other_text" not in summary["marks"]


def test_every_stored_id_is_what_transformers_renders_and_decodes(rows: dict[str, list[Row]], tiny_qwen3: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_qwen3)
    turns = 0
    for row in (row for found in rows.values() for row in found):
        places = [at for at, message in enumerate(row["messages"]) if message["role"] == "assistant"]
        for at, turn in zip(places, row["turns"], strict=True):
            history = json.loads(json.dumps(row["messages"][:at]))
            for call in (call for message in history for call in message.get("tool_calls", ())):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            ids = tokenizer.apply_chat_template(
                history,
                tools=[ODD_AS_SENT if row["source"] == "odd_tool" else AS_SENT] if row["tools"] else None,
                add_generation_prompt=True,
                return_dict=False,
                enable_thinking=row["source"] not in DIRECT,
            )
            assert turn["prompt_token_ids"] == ids, tokenizer.decode(turn["prompt_token_ids"])
            text = tokenizer.decode(turn["response_token_ids"])
            message = row["messages"][at]
            assert message["content"].strip() in text and message.get("reasoning_content", "") in text
            turns += 1
    assert turns >= 19


def test_turns_with_and_without_thoughts(rows: dict[str, list[Row]]) -> None:
    (thinking,), (direct,) = rows["thinking"], rows["direct"]
    assert [message["content"].strip() for message in said(thinking)] == LABELS
    thoughts = [message["reasoning_content"].strip() for message in said(thinking)]
    assert thoughts == [f"The request looks like {label}." for label in LABELS]
    assert [message["content"].strip() for message in said(direct)] == LABELS[::-1]
    assert not any("reasoning_content" in message for message in said(direct))
    for row in (thinking, direct):
        assert row["ended"] == "complete" and [turn["class"] for turn in row["turns"]] == ["complete"] * 3
        assert [turn["marks"] for turn in row["turns"]] == [[]] * 3
        assert [turn["sampling"]["seed"] for turn in row["turns"]] == [0, 64, 128]
        assert not any(turn["seed_honoured"] for turn in row["turns"])


def test_recorded_results_are_replayed_to_one_call_and_to_two(rows: dict[str, list[Row]]) -> None:
    replayed = {"tool": [["sun of rome"], ["sun of oslo"]], "tools": [["sun of rome", "sun of oslo"]]}
    replayed["tools_direct"] = replayed["tools"]
    for source, expected in replayed.items():
        found = [[item for item in row["messages"] if item["role"] == "tool"] for row in rows[source]]
        assert sorted([item["content"] for item in results] for results in found) == sorted(expected)
        for row, results in zip(rows[source], found, strict=True):
            calls = said(row)[0]["tool_calls"]
            assert [item["tool_call_id"] for item in results] == [call["id"] for call in calls]
            assert said(row)[-1]["content"].strip() == "done" and row["ended"] == "complete"
            assert [turn["class"] for turn in row["turns"]] == ["tool_call", "complete"]
            # Inside the loop the thoughts are in the next prompt again.
            assert ("reasoning_content" in said(row)[0]) == (source not in DIRECT)


def test_where_calls_have_no_results_the_conversation_ends_and_is_kept(rows: dict[str, list[Row]]) -> None:
    (row,) = rows["diverging"]
    assert (row["ended"], [turn["class"] for turn in row["turns"]]) == ("tool_call", ["tool_call"])
    assert len(said(row)[0]["tool_calls"]) == 2 and row["messages"][-1] == said(row)[0]


def test_what_can_not_go_on_is_kept_and_told(rows: dict[str, list[Row]], made: Project) -> None:
    (cut,), (later,), (long,) = rows["cut"], rows["later"], rows["long"]
    assert (cut["ended"], [turn["class"] for turn in cut["turns"]]) == ("broken_turn", ["cut_in_thinking"])
    assert said(cut)[0]["content"] == "" and said(cut)[0]["reasoning_content"]
    assert (later["ended"], len(later["turns"])) == ("refused", 1) and "must alternate" in later["ended_reason"]
    assert (long["ended"], len(long["turns"])) == ("context_full", 1) and "context length" in long["ended_reason"]
    assert rows["refused"] == []
    run = made.made
    (failure,) = (row for chunk in run.chunks() for row in files.read_jsonl_zst(run.failures(chunk)))
    assert (failure["class"], failure["final"], failure["source"]) == ("refused", True, "refused")


def test_each_turn_is_a_training_row_with_its_own_mask(rows: dict[str, list[Row]], made: Project) -> None:
    (path,) = made.made.folder.glob("training/*/train-*.parquet")
    table = {(row["prompt_id"], row["turn"]): row for row in pl.read_parquet(path).iter_rows(named=True)}
    (row,) = rows["thinking"]
    for number, turn in enumerate(row["turns"]):
        found = table[row["prompt_id"], number]
        assert found["input_ids"] == turn["prompt_token_ids"] + turn["response_token_ids"]
        assert found["loss_mask"] == [0] * len(turn["prompt_token_ids"]) + [1] * len(turn["response_token_ids"])


def test_the_servers_environment_writes_what_torch_loads(made: Project, env: Environment) -> None:
    (index,) = made.made.folder.glob("training/*/training.json")
    paths = {entry["path"] for entry in files.read_json(index)["files"]}
    assert paths >= {"d2t-64.npy", "t2d-64.npy", "token_freq.npy", "token_freq.pt", "vocab_mapping-64.pt"}
    code = "import sys, torch; made = torch.load(sys.argv[1], weights_only=True); print(int(made['t2d'].sum()))"
    done = subprocess.run(
        [env.python, "-P", "-c", code, index.parent / "vocab_mapping-64.pt"], check=True, capture_output=True, text=True
    )
    assert done.stdout == "64\n"

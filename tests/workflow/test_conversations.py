"""`turns: all` through the whole workflow: every turn anew, tools replayed, faults in the middle of a conversation."""

import json
import os
import signal
from typing import Any

from tests.standin.audit import processes_of
from tests.standin.project import Project
from tests.standin.server import tokens
from tests.standin.tiny_tokenizer import make_tokenizer
from workflow_scripts import files
from workflow_scripts.completions.sampling import settings

TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in ("weather", "news")
]


def call(name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def chat(number: int, questions: int) -> dict[str, Any]:
    """A recorded conversation; in every third the model will call one recorded tool, or two at once."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(questions):
        text = f"Chat {number}, question {turn}?"
        if number % 3 == 0 and turn == 1:
            text += '\nCALL weather {"city": "Rome"}' + ('\nCALL news {"of": 1}' if number % 2 else "")
            calls = [call("news", {"of": 1.0}, "b"), call("weather", {"city": "Rome"}, "a")]
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "", "tool_calls": calls}]
            messages += [{"role": "tool", "tool_call_id": name, "content": f"result {name}"} for name in "ba"]
        else:
            messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": f"Old {turn}."})
    return {"messages": messages, "tools": TOOLS}


def test_every_turn_is_made_anew_whatever_dies(fresh: Project) -> None:
    fresh.config["prompts"] = {"turns": "all"}
    fresh.config["model"] = {"path": "model", "tokenizer": str(make_tokenizer(fresh.folder / "tokenizer"))}
    fresh.config["servers"]["args"]["context-length"] = 1400
    diverging = chat(50, 1)
    diverging["messages"][1]["content"] += '\nCALL unknown {"x": 1}'
    long = {"messages": [turn for _ in range(10) for turn in chat(51, 1)["messages"][1:]]}
    long["messages"][2] = {"role": "user", "content": "Tell me all. " * 40}
    refused = chat(52, 2)
    refused["messages"][3]["content"] = "Refuse this."
    chats = [*(chat(number, 3) for number in range(12)), diverging, long, refused]
    fresh.write_rows("chats", chats)
    faults = {"next_statuses": [503] * 5, "abort": 3, "garbage": 2, "refuse_on": ["Refuse this."]}
    fresh.finish(STANDIN_FAULTS=json.dumps(faults))

    run = fresh.made
    by_source: dict[str, list[Any]] = {"questions": [], "chats": []}
    for chunk in run.chunks():
        for row in files.read_jsonl_zst(run.completions(chunk)):
            by_source[row["source"]].append(row)
    assert {len(row["turns"]) for row in by_source["questions"]} == {1}
    ended = [row["ended"] for row in by_source["chats"]]
    assert sorted(ended) == sorted(["complete"] * 12 + ["tool_call", "context_full", "refused"])
    for row in by_source["chats"]:
        question = next(item["content"] for item in row["messages"] if item["role"] == "user")
        number = int(question.split(",")[0].removeprefix("Chat "))
        results = [item["content"] for item in row["messages"] if item["role"] == "tool"]
        if number < 12:
            # In the order of the new calls, whatever the recorded one was.
            assert results == ([] if number % 3 else ["result a", "result b"] if number % 2 else ["result a"])
            assert len(row["turns"]) == 3 + bool(results)
        elif row["ended"] == "refused":
            assert len(row["turns"]) == 1 and row["ended_reason"] == "the template refuses it"
        elif row["ended"] == "context_full":
            assert 1 < len(row["turns"]) < 10 and "maximum context length" in row["ended_reason"]
    summary = files.read_json(run.summary)
    assert summary["refused"] == {"chats": {"prompts": 1, "says": ["the template refuses it"]}}
    # The stand-in has a template of its own, which no tokenizer knows: that is told.
    checked = summary["checked"]
    assert checked["turns"] == checked["drift"]["prompt"] > 40 and len(summary["alarms"]) == 1
    assert summary["marks"] == {"no_call": 2}  # where the model called one of the two recorded tools


def test_a_kill_in_the_middle_of_conversations_draws_no_other_settings(fresh: Project) -> None:
    fresh.config["prompts"] = {"turns": "all"}
    fresh.config["model"] = {"path": "model", "tokenizer": str(make_tokenizer(fresh.folder / "tokenizer"))}
    fresh.config["chunks"] = {"count": 1}
    fresh.config["sampling"] |= {
        "n": 2,
        "seed": 3,
        "temperature": [0.1, 0.2, 0.3],
        "thinking": {"values": [True, False], "weights": [1, 1]},
        "by_source": {"questions": {"max_tokens": [150, 151], "thinking": None}},
    }
    fresh.write_rows("chats", [chat(number, 3) for number in range(6)])
    running = fresh.start(STANDIN_FAULTS=json.dumps({"delay": 0.1, "hold_after": 30}))
    fresh.wait_for_answers(30)  # the later turns of some conversations are never given
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert 0 < fresh.journaled() < 24
    fresh.finish()

    run = fresh.made
    rows = list(files.read_jsonl_zst(run.completions("00000")))
    assert len(rows) == 2 * (12 + 6)
    for row in rows:
        sent = settings(run.config.sampling, row, row["sample"])
        for number, turn in enumerate(row["turns"]):
            assert turn["sampling"] == {**sent, "seed": 3 + row["sample"] + 64 * number}
    drawn = {(turn["sampling"]["temperature"], turn["sampling"]["max_tokens"]) for row in rows for turn in row["turns"]}
    assert len(drawn) == 3 * 3


def test_a_conversation_whose_later_turn_fails_is_asked_again_by_a_redrive(fresh: Project) -> None:
    fresh.config["prompts"] = {"turns": "all"}
    fresh.config["model"] = {"path": "model", "tokenizer": str(make_tokenizer(fresh.folder / "tokenizer"))}
    fresh.config["chunks"] = {"count": 1}
    del fresh.config["sources"]["questions"]
    rotten = chat(4, 3)
    rotten["messages"][5]["content"] = "Rot."
    fresh.write_rows("chats", [chat(number, 3) for number in (1, 2)] + [rotten])
    fresh.finish(STANDIN_FAULTS=json.dumps({"garbage_on": "Rot."}))
    run = fresh.made
    (failure,) = files.read_jsonl_zst(run.failures("00000"))
    assert (failure["class"], len(failure["turns"]), len(failure["messages"])) == ("bad_reply", 2, 5)
    for at, turn in zip((2, 4), failure["turns"], strict=True):
        history = "".join(f"<{item['role']}>{item['content']}" for item in failure["messages"][:at])
        assert turn["prompt_token_ids"] == tokens(history) and "shared" not in turn
    assert files.read_json(run.summary)["failure_classes"] == {"bad_reply": 1}
    fresh.finish("redrive")
    (row,) = files.read_jsonl_zst(run.completions("r1"))
    assert (row["prompt_id"], row["ended"], len(row["turns"])) == (failure["prompt_id"], "complete", 3)


def test_a_server_that_misquotes_itself_is_told(fresh: Project) -> None:
    result = fresh.run(STANDIN_FAULTS=json.dumps({"misquote_on": ["Chat 5?", "Question 3?"]}))
    assert result.code == 0, result.output
    summary = files.read_json(fresh.made.summary)
    assert summary["marks"] == {"other_text": 2}
    alarm = "of 2 turns the response ids do not decode to the stored text (other_text)"
    assert summary["alarms"] == [alarm] and alarm in result.output
    rows = [row for chunk in fresh.made.chunks() for row in files.read_jsonl_zst(fresh.made.completions(chunk))]
    marked = {row["messages"][0]["content"] for row in rows if row["turns"][0]["marks"]}
    assert marked == {"Chat 5?", "Question 3?"}


def test_a_conversation_is_committed_whole(fresh: Project) -> None:
    fresh.config["prompts"] = {"turns": "all"}
    fresh.config["model"] = {"path": "model", "tokenizer": str(make_tokenizer(fresh.folder / "tokenizer"))}
    del fresh.config["sources"]["questions"]
    fresh.config["chunks"] = {"count": 1}
    fresh.write_rows("chats", [chat(number, 4) for number in (1, 2, 4, 5, 7, 8, 10, 11)])
    # The server dies in the third turn of a conversation, and is started again: that turn alone is asked again.
    running = fresh.start(STANDIN_FAULTS=json.dumps({"delay": 0.05, "slow_on": {"question 2": 1}}))
    fresh.wait_for_answers(16)
    server = min(pid for pid, argv in processes_of(fresh.folder).items() if "tests.standin.server" in argv)
    os.kill(server, signal.SIGKILL)
    result = running.wait()
    assert result.code == 0, result.output
    fresh.audit()
    assert fresh.server_starts() == 2
    asked = fresh.requests()
    assert len(asked) - len(set(asked)) <= 4  # what was in flight

"""Requests, replies, turn classes, faults, and a journal that becomes a chunk."""

import resource
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts import files
from workflow_scripts.completions import fingerprint
from workflow_scripts.completions.__main__ import allow_open_files
from workflow_scripts.completions.classify import repeats, turn_class
from workflow_scripts.completions.conversation import Conversation
from workflow_scripts.completions.faults import Fault, ServerRefusesUs, from_status
from workflow_scripts.completions.finish import ChunkJournal, expected_keys, finish, keys_sha256
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.config import Sampling
from workflow_scripts.errors import PlainError
from workflow_scripts.files import Journal
from workflow_scripts.records import Completion, Failure, Message, Prompt
from workflow_scripts.run import Run


def prompt(number: int = 0, text: str = "Hello?") -> Prompt:
    return {
        "prompt_id": f"{number:064x}",
        "first_id": f"{number:064x}",
        "source": "demo",
        "source_id": str(number),
        "source_row": number,
        "messages": [{"role": "user", "content": text}],
        "tools": None,
        "meta": {},
    }


def reply(**changes: Any) -> dict[str, Any]:
    choice = {
        "message": {"role": "assistant", "content": "Hi.", "reasoning_content": None, "tool_calls": None},
        "finish_reason": "stop",
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": [4, 5],
    }
    choice.update({key: changes.pop(key) for key in list(changes) if key in choice})
    return {"id": "r", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **changes}


def completed(answer: dict[str, Any], number: int = 0, sample: int = 0) -> Completion:
    conversation = Conversation(prompt(number), sample, Sampling())
    conversation.take(answer, "r", Answerer("s"), attempts=1, seconds=0.5)
    return conversation.completion()


def test_the_request_says_what_the_config_says_and_no_more() -> None:
    sampling = Sampling(temperature=0.2, top_p=0.9, max_tokens=7, seed=3)
    body = Conversation(prompt(), 0, sampling).request("m", "r")
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello?"}],
        "rid": "r",
        "return_token_ids": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "max_tokens": 7,
        "seed": 3,
    }
    with_tools: Prompt = {**prompt(), "tools": [{"type": "function"}]}
    thinking = Conversation(with_tools, 2, Sampling(thinking=False, top_k=5)).request("m", "r")
    assert thinking["chat_template_kwargs"] == {"enable_thinking": False}
    assert thinking["tools"] == [{"type": "function"}] and thinking["top_k"] == 5
    assert thinking["seed"] == 2  # the sample's own


def test_a_completion_keeps_the_servers_ids_and_the_prompts_fields() -> None:
    completion = completed(reply(), number=7, sample=1)
    assert completion["prompt_id"] == f"{7:064x}" and completion["sample"] == 1
    assert completion["messages"] == [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."}]
    turn = completion["turns"][0]
    assert (turn["prompt_token_ids"], turn["response_token_ids"]) == ([1, 2, 3], [4, 5])
    assert turn["class"] == "complete" and turn["marks"] == [] and not turn["seed_honoured"]
    assert turn["sampling"] == {"temperature": 0.7, "top_p": 0.95, "max_tokens": 4096, "seed": 1}
    assert completion["ended"] == "complete" and "ended_reason" not in completion


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (reply(id="other"), "bad_reply", "another request"),
        (reply(finish_reason="abort"), "aborted", "aborted"),
        (reply(prompt_token_ids=[1]), "bad_reply", "not as many"),
        ({"id": "r", "choices": []}, "bad_reply", "no chat completion"),
        ({"id": "r"}, "bad_reply", "no chat completion"),
        ([], "bad_reply", "no chat completion"),
        (None, "bad_reply", "no chat completion"),
        (reply(finish_reason=None), "bad_reply", "no chat completion"),
        *(
            (reply(response_token_ids=ids), "bad_reply", "no chat completion")
            for ids in (None, [1.5, 2], [True, 2], [-1, 2], [2**31, 2], ["4", "5"], [[4], [5]])
        ),
        (reply(prompt_token_ids=[], usage={"prompt_tokens": 0, "completion_tokens": 2}), "bad_reply", "no chat"),
    ],
)
def test_a_reply_that_is_no_completion(answer: Any, kind: str, says: str) -> None:
    with pytest.raises(Fault, match=says) as caught:
        completed(answer)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"finish_reason": "length"}, "cut_in_answer"),
        ({"finish_reason": "length", "message": {"content": None, "reasoning_content": "Hm"}}, "cut_in_thinking"),
        ({"finish_reason": "length", "message": {"content": "Yes", "reasoning_content": "Hm"}}, "cut_in_answer"),
        ({"finish_reason": "length", "message": {"content": "<think>\nHm"}}, "cut_in_thinking"),
        ({"finish_reason": "length", "message": {"content": "<think>\nHm</think>Yes"}}, "cut_in_answer"),
        ({"message": {"content": " \n"}}, "empty"),
        ({"message": {"content": None}}, "empty"),
        (
            {
                "finish_reason": "tool_calls",
                "message": {"content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            },
            "tool_call",
        ),
    ],
)
def test_turn_classes(changes: dict[str, Any], kind: str) -> None:
    assert completed(reply(**changes))["turns"][0]["class"] == kind


@given(pattern=st.lists(st.integers(0, 9), min_size=1, max_size=32), head=st.lists(st.integers(0, 9), max_size=20))
def test_a_loop_at_the_end_is_repetition(pattern: list[int], head: list[int]) -> None:
    assert repeats([*head, *(pattern * 200)[:140], 2])


def test_text_that_goes_on_is_no_repetition() -> None:
    assert not repeats(list(range(500)))
    assert not repeats([1] * 50)
    assert turn_class({"role": "assistant", "content": "a"}, "stop", [7] * 300) == "repetition"


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)", "too_long"),
        (400, "Requested token count exceeds the model's maximum context length of 4096 tokens", "too_long"),
        (400, "Conversation roles must alternate", "refused"),
        (422, "bad field", "refused"),
        (503, "The request queue is full.", "server_error"),
        (429, "slow down", "server_error"),
        (500, "oops", "server_error"),
    ],
)
def test_statuses(status: int, text: str, kind: str) -> None:
    for body in ({"message": text}, {"error": {"message": text}}, {"error": text}):
        fault = from_status(status, orjson.dumps(body))
        assert fault.kind == kind and text in fault.reason
    assert from_status(500, b"\xff\n<html>").reason == "HTTP 500: \ufffd <html>"


@pytest.mark.parametrize("body", [b'{"error": {"message": null}}', b'{"message": ["x"]}', b'{"detail": "x"}', b"[]"])
def test_an_error_without_words_is_told_as_it_came(body: bytes) -> None:
    assert from_status(400, body).reason == body.decode()


@pytest.mark.parametrize("status", [302, 307])
def test_nobody_is_sent_elsewhere(status: int) -> None:
    with pytest.raises(ServerRefusesUs, match="elsewhere"):
        from_status(status, b"")


def test_a_server_that_refuses_us_is_no_prompts_fault() -> None:
    with pytest.raises(ServerRefusesUs, match="401"):
        from_status(401, b'{"error": "Unauthorized"}')


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "demo-1")


def journal_of(run: Run, prompts: list[Prompt], samples: int = 1) -> ChunkJournal:
    return ChunkJournal(files.Journal(run.journal("00000")), "sha", expected_keys(prompts, samples))


def failure(number: int) -> Failure:
    return {
        "prompt_id": f"{number:064x}",
        "sample": 0,
        "source": "demo",
        "class": "too_long",
        "reason": "long",
        "final": True,
        "attempts": 1,
    }


def test_a_journal_becomes_a_chunk_in_manifest_order(run: Run) -> None:
    prompts = [prompt(number) for number in (3, 1, 2)]
    journal = journal_of(run, prompts)
    journal.open_session({"model": "m"}, {"server": "a"})
    journal.add_completion(completed(reply(), 2))
    journal.add_failure(failure(1))
    assert journal.missing() == [(f"{3:064x}", 0)]
    with pytest.raises(PlainError, match="1 of 3 answers are missing"):
        finish(run, "00000", journal)
    assert not run.completions("00000").exists()
    journal.journal.close()

    journal = journal_of(run, prompts)
    journal.open_session({"model": "m"}, {"server": "b"})
    journal.add_completion(completed(reply(), 3))
    sidecar = finish(run, "00000", journal)
    rows = list(files.read_jsonl_zst(run.completions("00000")))
    assert [row["source_row"] for row in rows] == [3, 2]
    assert [row["class"] for row in files.read_jsonl_zst(run.failures("00000"))] == ["too_long"]
    assert sidecar["completions"]["rows"] == 2 and sidecar["failures"]["rows"] == 1
    assert sidecar["completions"]["sha256"] == files.sha256_file(run.completions("00000"))
    assert sidecar["keys_sha256"] == keys_sha256((item["prompt_id"], 0) for item in prompts)
    assert sidecar["ended"] == {"demo": {"complete": 2}} and sidecar["marks"] == {}
    assert (sidecar["prompt_tokens"], sidecar["output_tokens"]) == (6, 4)
    assert sidecar["fingerprint"]["speed"] == [{"server": "a"}, {"server": "b"}]


def test_turns_are_packed_in_the_journal_and_whole_in_the_files(run: Run) -> None:
    said: list[Message] = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "x"}]
    prompts = [prompt(number) | {"messages": said * 2} for number in (1, 2)]
    journal = journal_of(run, prompts)
    second = reply(prompt_token_ids=[1, 2, 3, 4, 9, 9], usage={"prompt_tokens": 6, "completion_tokens": 2})
    conversations = [Conversation(one, 0, Sampling()) for one in prompts]
    for conversation in conversations:
        for answer in (reply(), second):
            conversation.take(answer, "r", Answerer("s"), attempts=1, seconds=0.5)
    journal.add_completion(conversations[0].completion())
    journal.add_failure(failure(2) | {"turns": conversations[1].turns, "messages": conversations[1].messages})
    journal.journal.close()
    lines = [line for _, _, line in files.Journal(run.journal("00000")).lines()]
    assert [turn["prompt_token_ids"] for turn in lines[0]["completion"]["turns"]] == [[1, 2, 3], [9, 9]]
    journal = journal_of(run, prompts)
    sidecar = finish(run, "00000", journal)
    (row,) = files.read_jsonl_zst(run.completions("00000"))
    (failed,) = files.read_jsonl_zst(run.failures("00000"))
    for turns in (row["turns"], failed["turns"]):
        assert [turn["prompt_token_ids"] for turn in turns] == [[1, 2, 3], [1, 2, 3, 4, 9, 9]]
        assert not any("shared" in turn for turn in turns)
    assert (sidecar["prompt_tokens"], sidecar["output_tokens"]) == (9, 4)


def test_the_templates_words_are_counted_by_source(run: Run) -> None:
    prompts = [prompt(number) for number in (1, 2, 3)]
    journal = journal_of(run, prompts)
    for one, words in ((1, "must alternate"), (2, "must alternate"), (3, "no system")):
        refused: Completion = {**completed(reply(), one), "ended": "refused", "ended_reason": words}
        journal.add_completion(refused)
    sidecar = finish(run, "00000", journal)
    assert sidecar["ended"] == {"demo": {"refused": 3}}
    assert sidecar["refused"] == {"demo": {"must alternate": 2, "no system": 1}}


def test_the_sidecar_is_written_last_and_after_the_journal_is_on_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, replace = Journal.sync, Path.replace

    def synced(journal: Journal) -> None:
        order.append("journal")
        sync(journal)

    def replaced(path: Path, target: Path) -> Path:
        order.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(Journal, "sync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    journal = journal_of(run, [prompt(1)])
    journal.add_completion(completed(reply(), 1))
    finish(run, "00000", journal)
    assert order == ["journal", "00000.jsonl.zst", "00000.failures.jsonl.zst", "00000.json"]


def test_every_sample_is_owed(run: Run) -> None:
    journal = journal_of(run, [prompt(1)], samples=2)
    journal.open_session({}, {})
    journal.add_completion(completed(reply(), 1, sample=1))
    assert journal.missing() == [(f"{1:064x}", 0)]


@pytest.mark.parametrize(("numbers", "says"), [([1, 1], "twice"), ([9], "not in its chunk")])
def test_a_journal_with_a_doubled_or_foreign_prompt_is_refused(run: Run, numbers: list[int], says: str) -> None:
    journal = journal_of(run, [prompt(1)])
    journal.open_session({}, {})
    for number in numbers:
        journal.add_completion(completed(reply(), number))
    journal.journal.close()
    with pytest.raises(PlainError, match=says):
        journal_of(run, [prompt(1)])


def test_a_journal_takes_no_answers_of_servers_that_answer_differently(run: Run) -> None:
    journal = journal_of(run, [prompt(1)])
    journal.open_session({"model": "m", "dtype": "bfloat16"}, {"server": "a"})
    with pytest.raises(PlainError, match="dtype: 'bfloat16' before, 'float16' now"):
        journal.open_session({"model": "m", "dtype": "float16"}, {"server": "b"})
    journal.open_session({"model": "m", "dtype": "bfloat16"}, {"server": "b"})
    session = {"prompts_sha256": "sha", "content": {"model": "m", "dtype": "float16"}, "speed": {}}
    journal.journal.close()
    journal_of(run, [prompt(1)]).journal.close()
    with files.Journal(run.journal("00000")) as file:
        file.append({"session": session})
    with pytest.raises(PlainError, match="dtype: 'bfloat16' before, 'float16' now\nMove the journal away"):
        journal_of(run, [prompt(1)])


def test_a_run_whose_fingerprint_was_lost_stays_with_what_made_its_answers(run: Run) -> None:
    bound, other = {"dtype": "bfloat16"}, {"dtype": "float16"}
    fingerprint.bind(run, bound)
    says = "dtype: 'bfloat16' before, 'float16' now"
    with pytest.raises(PlainError, match=says):
        fingerprint.bind(run, other)
    journal = journal_of(run, [prompt(1)])
    journal.open_session(bound, {})
    run.journal("00001").write_bytes(b"")  # a job that died before it had a server
    run.fingerprint.unlink()
    with pytest.raises(PlainError, match=says):
        fingerprint.bind(run, other)
    journal.add_completion(completed(reply(), 1))
    finish(run, "00000", journal)
    run.journal("00000").unlink()
    with pytest.raises(PlainError, match=says):
        fingerprint.bind(run, other)
    assert not run.fingerprint.exists()
    fingerprint.bind(run, bound)
    assert files.read_json(run.fingerprint) == bound


def test_a_journal_of_other_prompts_is_refused(run: Run) -> None:
    with files.Journal(run.journal("00000")) as file:
        file.append({"session": {"prompts_sha256": "other", "content": {}, "speed": {}}})
    with pytest.raises(PlainError, match="written for other prompts"):
        journal_of(run, [prompt(1)])


def test_a_chunk_job_may_open_a_connection_for_each_seat() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

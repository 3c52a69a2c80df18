"""The client against a stand-in in the same process: what is asked again, what fails for good, what stays open."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from tests.standin.server import Standin
from tests.unit.test_completions import prompt
from workflow_scripts.completions.client import Client, Task
from workflow_scripts.config import Limits, Sampling
from workflow_scripts.records import Completion, Failure, Message, Prompt
from workflow_scripts.serving.endpoints import Endpoint
from workflow_scripts.serving.launch import granted


class Seats:
    """A lease of so many seats that nobody shares."""

    def __init__(self, seats: int) -> None:
        self.seats = seats

    def want(self, seats: int) -> None:
        pass

    def allowance(self, seats: int) -> int:
        return self.seats

    def flying(self, requests: int) -> None:
        pass

    def others_flying(self) -> int:
        return 0

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()


def answer(
    faults: dict[str, Any],
    count: int = 6,
    seats: int = 3,
    stall: float = 60.0,
    prompts: list[Prompt] | None = None,
    context: int = 4096,
) -> tuple[list[Completion], list[Failure], Standin]:
    """The completions and failures of `count` prompts against a stand-in with `faults`."""
    done: list[Completion] = []
    failed: list[Failure] = []
    standin = Standin(seats, context, None)
    standin.faults.update(faults)

    async def run() -> None:
        async with TestServer(standin.app()) as server:
            url = str(server.make_url("")).rstrip("/")
            endpoint = Endpoint("s", url, None, await asyncio.to_thread(granted, url, None), {}, 259)

            async def reconnect(old: Endpoint) -> Endpoint:
                return old

            async def not_ours(old: Endpoint, reason: str) -> None:
                raise AssertionError("this server is not ours to end")

            client = Client(
                endpoint=endpoint,
                sampling=Sampling(max_tokens=200),
                limits=Limits(retry_wait=0, stall=stall),
                seats=Seats(seats),
                reconnect=reconnect,
                give_up=not_ours,
                last_words=lambda: "",
                crashed=lambda endpoint, lost: None,
                done=done.append,
                failed=failed.append,
            )
            asked = prompts or [prompt(number, f"Question {number}?") for number in range(count)]
            await client.answer([Task(one, 0) for one in asked])

    asyncio.run(run())
    return done, failed, standin


def test_seats_are_filled_and_never_more(monkeypatch: pytest.MonkeyPatch) -> None:
    done, failed, standin = answer({"delay": 0.05}, count=12)
    assert len(done) == 12 and failed == []
    assert standin.most_in_flight == 3 and standin.seen == 12


def test_a_servers_trouble_is_tried_again() -> None:
    once = ["garbage", "blank", "no_choices", "not_json", "wrong_json", "foreign_ids", "abort", "wrong_id"]
    done, failed, standin = answer({"next_statuses": [503, 500, 429], **dict.fromkeys(once, 1)})
    assert len(done) == 6 and failed == []
    assert standin.seen == 6 + 3 + len(once)


def test_an_outage_fails_no_prompt_for_good() -> None:
    done, failed, _ = answer({"status": 502})
    assert done == [] and len(failed) == 6
    assert {(item["class"], item["final"], item["attempts"]) for item in failed} == {("server_error", False, 8)}


def test_a_prompt_that_the_server_fails_with_fails_for_good_though_nobody_else_asks() -> None:
    done, failed, standin = answer({"fail_on": ["Question 0?"]}, count=1)
    assert done == [] and [(item["class"], item["final"]) for item in failed] == [("server_error", True)]
    assert standin.seen == 8 + 1


def test_a_reply_that_stays_bad_fails_its_prompt_for_good() -> None:
    done, failed, _ = answer({"garbage": 1000}, count=1)
    assert done == []
    assert [(item["class"], item["final"]) for item in failed] == [("bad_reply", True)]


def test_a_request_without_progress_is_tried_again_and_stays_open() -> None:
    done, failed, standin = answer({"hold_on": "Question 2?"}, stall=0.4)
    assert len(done) == 5
    assert [(item["class"], item["final"], item["attempts"]) for item in failed] == [("no_progress", False, 3)]
    assert standin.seen == 5 + 3 and standin.in_flight == 0


def test_a_long_generation_is_not_cut() -> None:
    done, failed, standin = answer({"delay": 1.5}, count=3, stall=0.2)
    assert len(done) == 3 and failed == [] and standin.seen == 3


def test_a_silent_server_that_tells_nothing_is_given_up() -> None:
    done, failed, _ = answer({"hold_after": 0}, count=2, stall=0.3)
    assert done == [] and {item["class"] for item in failed} == {"no_progress"}


def talk(number: int, questions: int, last: str = "") -> Prompt:
    """A recorded conversation of so many questions."""
    messages: list[Message] = []
    for turn in range(questions):
        messages += [{"role": "user", "content": f"Talk {number}, {turn}?"}, {"role": "assistant", "content": "old"}]
    return {**prompt(number), "messages": [*messages, *([{"role": "user", "content": last}] if last else [])]}  # type: ignore[list-item]


def test_a_fault_in_a_turn_asks_that_turn_again() -> None:
    done, failed, standin = answer(
        {"garbage": 2, "next_statuses": [503] * 3, "delay": 0.01}, prompts=[talk(number, 4) for number in range(3)]
    )
    assert failed == [] and {len(row["turns"]) for row in done} == {4}
    assert standin.seen == 3 * 4 + 5 and standin.most_in_flight == 3  # one request of a conversation at a time
    assert sum(turn["attempts"] for row in done for turn in row["turns"]) == 17
    for row in done:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 4
        assert all(message["content"] != "old" for message in row["messages"])


def test_turns_that_were_made_are_kept_where_a_later_one_fails_for_good() -> None:
    faults = {"refuse_on": ["Refuse."], "hold_on": "Hold."}
    prompts = [talk(0, 2, "Refuse."), talk(1, 2, "long " * 100), talk(2, 0, "Refuse."), talk(3, 2, "Hold.")]
    done, failed, _ = answer(faults, prompts=prompts, context=800, stall=0.4)
    kept = {row["prompt_id"]: row for row in done}
    refused, full = kept[prompts[0]["prompt_id"]], kept[prompts[1]["prompt_id"]]
    assert (refused["ended"], refused["ended_reason"]) == ("refused", "the template refuses it")
    assert full["ended"] == "context_full" and "maximum context length" in full["ended_reason"]
    assert len(refused["turns"]) == len(full["turns"]) == 2
    assert refused["messages"][-1]["role"] == "assistant"
    # The first turn's refusal is the prompt's failure; without progress it stays open, and is made from its beginning.
    classes = {row["prompt_id"]: (row["class"], row["final"]) for row in failed}
    assert classes == {prompts[2]["prompt_id"]: ("refused", True), prompts[3]["prompt_id"]: ("no_progress", False)}
    assert not any("turns" in row for row in failed)


def test_a_later_turn_that_fails_for_good_fails_its_prompt_with_what_was_made() -> None:
    done, failed, standin = answer({"garbage_on": "Rot."}, prompts=[talk(0, 2, "Rot."), talk(1, 2)])
    assert [len(row["turns"]) for row in done] == [2] and standin.seen == 2 + 8 + 2
    (row,) = failed
    assert (row["class"], row["final"], len(row["turns"])) == ("bad_reply", True, 2)
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 2

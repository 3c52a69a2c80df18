"""The client against a stand-in in the same process: what is asked again, what fails for good, what stays open."""

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from tests.standin.server import Standin
from tests.unit.test_completions import prompt
from workflow_scripts.completions import client as module
from workflow_scripts.completions.client import Client, Task
from workflow_scripts.config import Sampling
from workflow_scripts.records import Completion, Failure
from workflow_scripts.serving.endpoints import Endpoint
from workflow_scripts.serving.launch import granted


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "backoff_seconds", lambda attempt: 0.0)


def answer(faults: dict[str, Any], count: int = 6, seats: int = 3) -> tuple[list[Completion], list[Failure], Standin]:
    """The completions and failures of `count` prompts against a stand-in with `faults`."""
    done: list[Completion] = []
    failed: list[Failure] = []
    standin = Standin(seats, 4096, None)
    standin.faults.update(faults)

    async def run() -> None:
        async with TestServer(standin.app()) as server:
            url = str(server.make_url("")).rstrip("/")
            endpoint = Endpoint("s", url, None, await asyncio.to_thread(granted, url, None), {})

            async def reconnect(old: Endpoint) -> Endpoint:
                return old

            client = Client(
                endpoint=endpoint,
                sampling=Sampling(max_tokens=200),
                allowance=lambda: seats,
                want=lambda count: None,
                reconnect=reconnect,
                done=done.append,
                failed=failed.append,
            )
            await client.answer([Task(prompt(number, f"Question {number}?"), 0) for number in range(count)])

    asyncio.run(run())
    return done, failed, standin


def test_seats_are_filled_and_never_more(monkeypatch: pytest.MonkeyPatch) -> None:
    done, failed, standin = answer({"delay": 0.05}, count=12)
    assert len(done) == 12 and failed == []
    assert standin.most_in_flight == 3 and standin.seen == 12


def test_a_servers_trouble_is_tried_again() -> None:
    done, failed, standin = answer({"next_statuses": [503, 500, 429], "garbage": 1, "abort": 1, "wrong_id": 1})
    assert len(done) == 6 and failed == []
    assert standin.seen == 12


def test_an_outage_fails_no_prompt_for_good() -> None:
    done, failed, _ = answer({"status": 502})
    assert done == [] and len(failed) == 6
    assert {(item["class"], item["final"], item["attempts"]) for item in failed} == {("server_error", False, 8)}


def test_a_reply_that_stays_bad_fails_its_prompt_for_good() -> None:
    done, failed, _ = answer({"garbage": 1000}, count=1)
    assert done == []
    assert [(item["class"], item["final"]) for item in failed] == [("bad_reply", True)]

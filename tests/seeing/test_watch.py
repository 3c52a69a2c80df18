"""watch in a real terminal, on a run that lives, was interrupted, is finished, and on nothing. It needs tmux."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standin.project import ROOT, Project
from tests.standin.terminal import Terminal, terminal
from tests.standin.waiting import until

WATCH = "python -m workflow_scripts.reporting.watch"


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path) as found:  # beside the project, in which no process may be left
        yield found


def numbers(project: Project) -> dict[str, Any]:
    argv = [sys.executable, "-m", "workflow_scripts.reporting.watch", str(project.made.folder), "--once", "--json"]
    done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_live_run_then_an_interrupted_one_then_a_finished_one(prepared: Project, window: Terminal) -> None:
    prepared.config["limits"]["stall"] = 300
    run = prepared.start(STANDIN_FAULTS='{"delay": 0.5, "hold_after": 14}')
    prepared.wait_for_answers(10)
    window.say(f"{WATCH} project/results/small")
    until(lambda: "running for" in window.screen and "server 0" in window.screen)
    until(lambda: "14 of 24" in window.screen and " 4      0     4" in window.screen)
    assert not window.is_plain
    assert all(len(line) <= 80 for line in window.screen.splitlines())
    assert "\x1b[" not in window.colours.replace("\x1b[39m", "").replace("\x1b[49m", "")
    seen = numbers(prepared)
    assert seen["state"] == "running" and seen["answers"] == {"done": 14, "failed": 0, "owed": 24}
    assert seen["servers"][0]["in_flight"] == 4 and seen["servers"][0]["running"] == 4
    assert seen["servers"][0]["seats"] == 4 and seen["servers"][0]["queued"] == 0
    window.type("C-c")
    until(lambda: window.is_plain and "running for" in window.screen)  # what was seen last stays
    assert run.process.poll() is None  # to look at it did nothing to it

    run.signal_all(signal.SIGKILL)
    run.process.wait()
    prepared.no_process_left()
    window.say(f"clear; {WATCH} project/results/small")
    until(lambda: "interrupted; the same line goes on" in window.screen)
    seen = numbers(prepared)
    assert seen["state"] == "interrupted" and seen["answers"]["done"] == 14 and seen["left"] is None

    prepared.finish()
    window.say(f"clear; {WATCH} project/results/small")
    until(lambda: "finished, 20" in window.screen and "24 of 24" in window.screen)
    seen = numbers(prepared)
    assert seen["chunks"] == {"done": 3, "begun": 0, "waiting": 0, "all": 3}
    made = json.loads((prepared.made.summary).read_bytes())
    assert seen["tokens"]["output"] == made["output_tokens"] and seen["tokens"]["prompt"] == made["prompt_tokens"]
    assert {row["source"]: row["done"] for row in seen["sources"]} == {"questions": 12, "chats": 12}
    assert {kind: row["count"] for kind, row in seen["classes"].items()} == made["classes"]


def test_it_ends_with_the_run(prepared: Project, window: Terminal) -> None:
    run = prepared.start(STANDIN_FAULTS='{"delay": 0.2}')
    prepared.wait_for_answers(4)
    window.say(f"{WATCH} project/results/small --every 0.5; echo status $?")
    until(lambda: not window.is_plain)
    assert run.wait().code == 0
    until(lambda: "status 0" in window.screen)
    assert window.is_plain and "finished, 20" in window.screen


def test_an_empty_folder_is_one_line(window: Terminal) -> None:
    window.say(f"mkdir nothing; {WATCH} nothing; echo status $?")
    until(lambda: "status 1" in window.screen)
    told = [line for line in window.screen.splitlines() if line.startswith("error: ")]
    assert len(told) == 1 and "Traceback" not in window.screen
    window.say(f"clear; {WATCH}; echo status $?")
    until(lambda: "error: no run in results/ yet; name a run's folder" in window.screen)


def test_show_in_colour(finished: Project, window: Terminal) -> None:
    window.say("cd project; python -m workflow_scripts.reporting.show results/small --training -n 1; echo status $?")
    until(lambda: "status 0" in window.screen)
    assert "You said: " in window.screen and "\x1b[32m" in window.colours and "tokens are supervised" in window.screen

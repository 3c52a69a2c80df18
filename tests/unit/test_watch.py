"""What a screen says of a run's numbers."""

import math
import os
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.standin.made_run import BEGAN, make
from workflow_scripts import files
from workflow_scripts.identity import publish_hash, training_hash
from workflow_scripts.machine import gpus
from workflow_scripts.machine.host import Answer, Host
from workflow_scripts.processes import ProcessId
from workflow_scripts.reporting import servers_now
from workflow_scripts.reporting.alarms import alarms
from workflow_scripts.reporting.counted import Counted, owed
from workflow_scripts.reporting.pace import Pace, Span
from workflow_scripts.reporting.plain_text import columns
from workflow_scripts.reporting.screen import _span, _trend, lines
from workflow_scripts.reporting.snapshot import Watched, _left, _mean_output
from workflow_scripts.reporting.watch import _fitted
from workflow_scripts.run import Run
from workflow_scripts.serving.supervisor import State, folder_id


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make(tmp_path)


def test_a_finished_run(run: Run) -> None:
    seen = Watched(run).snapshot()
    summary = files.read_json(run.summary)
    assert seen["state"] == "finished" and seen["left"] is None and seen["store"] is None
    assert seen["answers"] == {"done": summary["completions"], "failed": summary["failures"], "owed": 300}
    assert seen["tokens"] == {"output": summary["output_tokens"], "prompt": summary["prompt_tokens"]}
    assert {kind: row["count"] for kind, row in seen["classes"].items()} == summary["classes"]
    assert {kind: row["count"] for kind, row in seen["failures"].items()} == summary["failure_classes"]
    assert seen["rate"]["all"] == pytest.approx(summary["output_tokens"] / 10_800, rel=0.2)
    assert sum(row["done"] for row in seen["sources"]) == summary["completions"]


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_lines_fit(run: Run, width: int) -> None:
    nasty = "\x1b[31m" + "long alarm \u202e " * 30
    files.write_bytes(run.folder / "alarms.jsonl", orjson.dumps({"at": 1, "alarm": nasty}) + b'\n{"at": 2, "ala')
    seen = Watched(run).snapshot()
    seen["state"], seen["since"], seen["left"] = "running", time.time() - 100_000, {"seconds": [4000, 300_000]}
    seen["servers"] = [server("server 0"), server("http://a-host-with-a-long-name.example.org:30000", "elsewhere")]
    card = {"index": "0", "name": "NVIDIA H200" * 5, "percent": 99.0, "used": 140_000.0, "total": 143_771.0}
    seen["gpus"] = [card, card | {"total": None}]
    text = lines(seen, width)
    assert all(columns(line) <= width for line in text)
    assert all(character.isprintable() for line in text for character in line)
    assert any(line.startswith("ALARM     <U+001B>[31mlong alarm") for line in text)
    if width >= 80:
        assert any(line.split()[-4:] == ["64", "1,234", "64", "12"] for line in text)
        assert any(line.endswith(" 99 %  140,000 of 143,771 MiB") for line in text)
        assert any(line.startswith("left      66 min to 3 d 11 h, until ") for line in text)
        assert "in work" in text[2] and "27 h 46 min" in text[0]


def test_what_is_left_in_words(run: Run) -> None:
    seen = Watched(run).snapshot()
    seen["state"], seen["at"], seen["left"] = "running", 1_790_000_005.0, {"seconds": [10.0, 20.0]}

    def left() -> str:
        return next(line for line in lines(seen, 80) if line.startswith("left "))

    assert re.fullmatch(r"left      10 s to 20 s, until \w+ \d\d:\d\d", left())
    seen["left"] = None
    assert left() == "left      answers: none; what is made of them follows"
    seen["chunks"] = {"done": 5, "begun": 1, "waiting": 0, "all": 6}
    assert left() == "left      too early to tell"


def test_recorded_answers_end_with_training_shards(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with (run.folder / "run.yaml").open("a") as file:
        file.write("training: {answers: recorded}\n")
    run.summary.unlink()
    other = Run(run.folder)
    seen = Watched(other).snapshot()
    assert seen["state"] == "interrupted" and seen["answers"]["owed"] == seen["chunks"]["all"] == 0
    assert "answers   none is asked for" in lines(seen, 80)
    index = run.folder / "training" / training_hash(other.config) / "training.json"
    files.write_json(index, {})
    assert Watched(other).snapshot()["state"] == "finished"


def test_a_redrive_that_was_interrupted(run: Run) -> None:
    files.write_bytes(run.journal("r1"), b'{"session": {}}\n')
    assert Watched(run).snapshot()["state"] == "interrupted"


def test_alarms_go_on_after_one_that_was_cut(run: Run) -> None:
    path = run.folder / "alarms.jsonl"
    cut = b'{"at": 2, "al{"at": 3, "alarm": "lost"}\n[]\n'
    files.write_bytes(path, b'{"at": 1, "alarm": "one"}\n' + cut + b'{"at": 4, "alarm": "two"}\n')
    assert alarms(path) == ["one", "two"]


def test_a_server_that_is_not_here(run: Run) -> None:
    folder = run.server(0)
    folder.mkdir(parents=True)
    gone = replace(ProcessId.here(), start=1)
    there = replace(gone, host="node7", boot_id="another")
    for process, status in ((gone, "ended"), (there, "on another host")):
        facts = {"url": "http://127.0.0.1:9"}
        state = State("server 0", "ready", 1, process, None, None, None, 1.0, facts, folder=folder_id(folder))
        files.write_json(folder / "state.json", state.to_json())
        (found,) = servers_now.known(run)
        assert (found.status, found.url, found.key) == (status, None, None)


def test_files_that_wait_for_their_upload(tmp_path: Path) -> None:
    run = make(tmp_path, prompts=60, chunks=60)
    with (run.folder / "run.yaml").open("a") as file:
        file.write("publish: {store: embedded, bucket: data}\n")
    run = Run(run.folder)
    files.write_json(run.sidecar("r1"), files.read_json(run.sidecar("00000")) | {"chunk": "r1"})
    assert Watched(run).snapshot()["store"] == {"objects": 0, "waiting": 3 * 61}
    receipts = run.folder / "published" / publish_hash(run.config)
    files.write_json(receipts / "0001.json", {"objects": [{}] * 30})
    assert Watched(run).snapshot()["store"] == {"objects": 30, "waiting": 3 * 51}
    files.write_json(receipts / "r1.json", {"objects": [{}] * 3})
    seen = Watched(run).snapshot()
    assert seen["store"] == {"objects": 33, "waiting": 3 * 50}
    assert "store     33 objects; 150 finished files still to upload" in lines(seen, 80)


def test_whose_run_lives(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "workflow_scripts.reporting.snapshot.gpus.use", lambda _: [gpus.Use("0", "H200", 1.0, 2.0, 3.0)]
    )
    run.summary.unlink()
    here = ProcessId.here()

    def seen(process: ProcessId, name: str = run.name) -> tuple[str, int]:
        files.write_json(run.results / ".lock", process.to_json() | {"run": name})
        told = Watched(run).snapshot()
        return told["state"], len(told["gpus"])

    assert seen(here) == ("running", 1) and seen(here, "another-run") == ("interrupted", 0)
    assert seen(replace(here, start=1)) == ("interrupted", 0)  # though it wrote a moment ago
    there = replace(here, boot_id="another")
    assert seen(there) == ("running", 1)
    os.utime(run.folder / "progress.jsonl", (1, 1))
    assert seen(there) == ("interrupted", 0) and seen(here) == ("running", 1)


def test_another_users_servers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder / "state.json"))

    run.server(0).mkdir(parents=True)
    monkeypatch.setattr("workflow_scripts.serving.supervisor.read_state", refuse)
    assert Watched(run).snapshot()["servers"] == []


def server(name: str, status: str = "ready") -> dict[str, Any]:
    numbers = {"seats": 64, "in_flight": 64, "running": 64, "queued": 1234, "deaths": 12, "number": 0}
    return {"name": name, "status": status, **numbers, "now": 12345.6, "five_minutes": 12345.6, "all": None}


def test_a_window_that_is_too_low() -> None:
    assert _fitted(["a", "b"], 24) == "a\x1b[K\r\nb\x1b[K\r\n"
    low = _fitted([str(n) for n in range(30)], 24).split("\x1b[K\r\n")
    assert len(low) == 24 and low[-2].startswith("... 8 more lines")


def test_looking_again_reads_what_is_new(run: Run) -> None:
    rows = list(files.read_jsonl_zst(run.completions("00002")))
    sidecar = run.sidecar("00002").read_bytes()
    run.sidecar("00002").unlink()
    journal = run.journal("00002")
    line = [orjson.dumps({"completion": row}) + b"\n" for row in rows]
    files.write_bytes(journal, b'{"session": {}}\n' + line[0] + line[1][:100])
    counted = Counted(run)
    others = files.read_json(run.summary)["completions"] - len(rows)
    assert counted.look().completions == others + 1 and counted.begun == 1
    with journal.open("ab") as file:  # the line's end, then a failure
        file.write(line[1][100:] + b'{"failure": {"class": "poison", "source": "openorca"}}\n')
    tally = counted.look()
    assert tally.completions == others + 2 and tally.failed["poison"] == 1
    assert counted.look().completions == others + 2
    files.write_bytes(run.sidecar("00002"), sidecar)
    tally = counted.look()
    assert tally.completions == others + len(rows) and counted.begun == 0 and "poison" not in tally.failed


def test_a_redrive_takes_the_failures_place(run: Run) -> None:
    before = Counted(run).look()
    sidecar = files.read_json(run.sidecar("00000"))
    sidecar |= {"chunk": "r1", "completions": {"rows": 4}, "failure_classes": {"too_long": 2}}
    files.write_json(run.sidecar("r1"), sidecar)
    after = Counted(run).look()
    assert after.completions == before.completions + 4 and after.failed == {"too_long": 2}


def test_what_is_owed(run: Run) -> None:
    wanted = owed(run)
    assert wanted is not None and sum(wanted.values()) == 300
    mix = files.read_json(run.manifest_json)
    stood_in = {"own": 0, "stood_in_for": {"openorca": 5}, "filled": 2, "dropped": {}, "available": 9, "not_drawn": 2}
    files.write_json(run.manifest_json, mix | {"others": [{"source": "spare", **stood_in}]})
    assert (owed(run) or {})["spare"] == 7
    run.manifest_json.unlink()
    assert owed(run) is None


def test_what_is_left(run: Run) -> None:
    tally = Counted(run).look()
    counts = tally.sources.counts()
    wanted = {name: 2 * source["completions"] for name, source in counts.items()}
    tokens = sum(source["output_tokens"] for source in counts.values())
    tally.failed.clear()
    late, whole = (
        Span(1.0, Counter(server=rate), Counter(complete=turns)) for rate, turns in ((100, 64), (50, 10_000))
    )
    error = _mean_output(counts)[1]
    assert 0.02 < error < 0.1
    found = _left(wanted, counts, tally, [late, whole])
    assert found is not None
    least, most = found["seconds"]
    assert least == pytest.approx(tokens / 100 / (1 + 2 * math.hypot(error, 1 / 8)))  # an eighth: of 64 turns
    assert most == pytest.approx(tokens / 50 * (1 + 2 * math.hypot(error, 1 / 100)))
    assert _left(wanted, counts, tally, [Span(), Span()]) is None and _left(None, counts, tally, [late]) is None
    assert _left({name: source["completions"] for name, source in counts.items()}, counts, tally, [late]) is None


def test_pace_over_five_minutes_and_in_all(run: Run) -> None:
    pace = Pace(run.folder / "progress.jsonl")
    pace.look()
    end = BEGAN + 10 * 1080
    recent = pace.recent(end)
    assert recent.seconds == 300 and pace.all.seconds == 10_800
    assert recent.turns["cut_in_thinking"] / recent.turns.total() > 0.12
    assert pace.seats == {"server 0": 64, "server 1": 64} and pace.all.deaths == Counter({"server 1": 1})
    assert pace.recent(end + 400).rate() is None
    before = pace.all.tokens.total()
    pace.look()
    assert pace.all.tokens.total() == before


def test_trends() -> None:
    assert _trend("cut_in_thinking", {"share": 0.05, "recent": 0.1}) == "  rising"
    assert _trend("cut_in_thinking", {"share": 0.1, "recent": 0.05}) == "  falling"
    assert _trend("cut_in_thinking", {"share": 0.1, "recent": 0.11}) == ""
    assert _trend("empty", {"share": 0.001, "recent": 0.005}) == ""
    assert _trend("complete", {"share": 0.1, "recent": 0.9}) == ""


def test_times_as_people_say_them() -> None:
    assert [_span(seconds) for seconds in (5, 600, 9000, 400_000)] == ["5 s", "10 min", "2 h 30 min", "4 d 15 h"]


def test_gpus() -> None:
    def told(answer: Answer | None) -> list[gpus.Use]:
        return gpus.use(Host(lambda _: answer, lambda _: None, lambda _: False, {}))

    one, other = told(Answer(True, "0, NVIDIA H200, 97, 120000, 143771\n1, NVIDIA H200, [N/A], 12, 143771\n"))
    assert one == gpus.Use("0", "NVIDIA H200", 97.0, 120000.0, 143771.0)
    assert other.percent is None
    assert told(Answer(False, "NVIDIA-SMI has failed")) == told(None) == []


def test_a_server_that_does_not_answer_tells_nothing(run: Run) -> None:
    gone = servers_now.Server("server 0", 0, "ready", "http://127.0.0.1:9", "key")
    assert servers_now.told(run, [gone])[0]["tokens_per_second"] is None

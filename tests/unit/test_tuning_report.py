"""tuning.json and its table."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.test_tuning import config
from workflow_scripts.config import Config
from workflow_scripts.tuning.answers import Compared, Likeness
from workflow_scripts.tuning.candidates import Candidate
from workflow_scripts.tuning.decide import Measured, Race
from workflow_scripts.tuning.measure import Outcome
from workflow_scripts.tuning.report import Row, answer_length, table, to_json


def outcome(rate: float, **changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "measured": Measured(rate, rate / 100, 60.0),
        "ramp_seconds": 20.0,
        "settled": True,
        "cut_short": False,
        "used_up": False,
        "seats_granted": 64,
        "seats_used": 60.0,
        "retracted": 0,
        "answers": [90, 100, 110] * 20,
        "tokens": 6000.0,
        "classes": {"complete": 45, "cut_in_answer": 15},
        "failed": {},
        "client": 0.1,
    }
    return Outcome(**(values | changes))


def report(mine: Config, *rows: Row) -> dict[str, Any]:
    race = Race([row.candidate.name for row in rows], rounds=1)
    race.next_round()
    for row in rows:
        for _, _, one in row.outcomes:
            if one.measured is not None:
                race.add(row.candidate.name, one.measured)
        if row.failed or row.otherwise:
            race.drop(row.candidate.name)
    facts = {"run": "r-1", "version": "0.5.23", "servers": 8, "sample": 500, "answers": 3_600_000}
    facts |= {"speed_of_servers": {f"server {number}": 1.0 for number in range(8)}, "unusable_servers": {}}
    return to_json(mine, list(rows), race, facts)


def test_the_report_tells_the_whole_runs_cost_and_how_sure_it_is() -> None:
    fast = Candidate("fast", {"page-size": 64})
    told = report(
        config(**{"servers.gpus_per_server": 2}),
        Row(Candidate("as_is"), [("server 0", 1, outcome(500.0, retracted=3))]),
        Row(fast, [("server 1", 1, outcome(1000.0))]),
        Row(Candidate("no"), failed="server 2 did not start: ...\n  torch.OutOfMemoryError: CUDA out of memory."),
        Row(Candidate("odd"), [("server 3", 1, outcome(2000.0))], otherwise="3 of 32 greedy answers are not as_is's"),
    )
    rows = {row["name"]: row for row in told["candidates"]}
    assert told["winner"] == {"name": "fast", "args": {"page-size": 64}} and told["tied"] == []
    assert told["gain"]["share"] == pytest.approx(1.0) and 0.02 < told["gain"]["spread"] < 0.2
    assert {name: row["standing"] for name, row in rows.items()} == {
        "as_is": "slower",
        "fast": "best",
        "no": "failed",
        "odd": "other_answers",
    }
    # 3.6 million answers of 100 tokens by eight servers of 1,000 tokens/s
    assert rows["fast"]["whole_run"]["hours"] == pytest.approx(12.5)
    assert rows["fast"]["whole_run"]["gpu_hours"] == pytest.approx(12.5 * 16)
    assert rows["fast"]["whole_run"]["days"] == pytest.approx(12.5 / 24, abs=0.001)
    assert rows["fast"]["tokens_per_second_per_gpu"] == 500.0
    assert rows["as_is"]["whole_run"]["hours"] == pytest.approx(25.0)
    assert rows["as_is"]["retracted"] == 3 and rows["as_is"]["truncated"] == 0.25
    assert rows["no"]["out_of_memory"] and not rows["odd"]["out_of_memory"]
    text = "\n".join(table(told))
    for words in (
        "1,000 ± ",
        "60/64",
        "25%",
        "200.0 GPU-h, 12.5 h ± ",
        "<- best",
        "OTHER ANSWERS",
        "CUDA out of memory",
    ):
        assert words in text, text
    assert "best: fast, +100.0%" in text


def test_servers_of_unequal_speed_are_told_and_share_the_whole_run() -> None:
    alike = report(config(), Row(Candidate("as_is"), [("server 0", 1, outcome(1000.0))]))
    slow = {"server 0": 1.0, "server 1": 0.7, "server 2": 1.0}
    facts = {key: alike[key] for key in ("run", "version", "sample", "answers")} | {"servers": 3}
    race = Race(["as_is"], rounds=1)
    race.next_round()
    race.add("as_is", Measured(1000.0, 10.0, 60.0))
    rows = [Row(Candidate("as_is"), [("server 0", 1, outcome(1000.0))])]
    more = {"speed_of_servers": slow, "unusable_servers": {"server 3": "server 3 did not start: x"}}
    told = to_json(config(), rows, race, facts | more)
    assert told["candidates"][0]["whole_run"]["hours"] == pytest.approx(100 / 2.7, abs=0.001)
    assert told["candidates"][0]["whole_run"]["gpu_hours"] == pytest.approx(300 / 2.7, abs=0.01)
    text = "\n".join(table(told))
    assert "which tokens/s is of: server 1 70%" in text and "server 3 could not be used: server 3 did not start" in text


def test_answers_that_part_anyhow_are_noted() -> None:
    own = Compared(Counter[Likeness]({"same": 15, "different": 1}), 0.1)
    told = report(config(), Row(Candidate("as_is"), [("server 0", 1, outcome(9.0))], compared=own))
    assert any(line.startswith("  note: as_is answers otherwise from time to time itself (1 ") for line in table(told))


def test_prompts_that_failed_are_noted() -> None:
    told = report(config(), Row(Candidate("as_is"), [("server 0", 1, outcome(9.0, failed={"too_long": 7}))]))
    assert "  note: prompts failed: as_is (7)" in table(told)


def test_who_was_not_measured_when_it_was_cut_short_is_no_failure() -> None:
    told = report(config(), Row(Candidate("as_is"), [("server 0", 1, outcome(9.0))]), Row(Candidate("later")))
    assert told["candidates"][1]["standing"] == "not_measured" and told["winner"]["name"] == "as_is"
    assert any(line.split() == ["later", "-", "it", "was", "not", "measured"] for line in table(told))


def test_on_the_cpu_there_are_no_gpu_hours() -> None:
    told = report(config(**{"servers.engine": "sglang-cpu"}), Row(Candidate("as_is"), [("server 0", 1, outcome(50.0))]))
    assert told["candidates"][0]["whole_run"]["gpu_hours"] is None and "GPU" not in "\n".join(table(told))


def test_doubts_are_noted() -> None:
    told = report(
        config(),
        Row(Candidate("as_is"), [("server 0", 1, outcome(50.0, settled=False, used_up=True, answers=[5], client=0.9))]),
    )
    notes = [line for line in table(told) if line.startswith("  note: ")]
    assert len(notes) == 4 and told["candidates"][0]["whole_run"] is None
    assert answer_length([Row(Candidate("as_is"), [("s", 1, outcome(50.0, settled=False))])]) is None


def test_where_none_can_be_used_there_is_no_winner() -> None:
    told = report(config(), Row(Candidate("as_is"), failed="server 0 did not start"))
    assert told["winner"] is None and told["gain"] is None
    assert "no candidate can be used" in "\n".join(table(told))

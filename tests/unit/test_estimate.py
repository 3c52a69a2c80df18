"""What a run will take: from its manifest, and from what earlier runs had."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workflow_scripts import files
from workflow_scripts.prompts.estimate import estimate
from workflow_scripts.reporting.forecast import BYTES_PER_ANSWER, BYTES_PER_TOKEN
from workflow_scripts.reporting.table import estimate_table
from workflow_scripts.run import Run

SOURCES = ("a", "b")


def make_run(results: Path, folder: str, **changes: Any) -> Run:
    run = Run(results / folder)
    values = {
        "name": "m",
        "sources": {source: {"path": f"{source}.jsonl"} for source in SOURCES},
        "chunks": {"count": 2},
        "model": {"path": "o/m"},
        "sampling": {"max_tokens": 1000, "n": 2},
        **changes,
    }
    files.write_json(run.folder / "run.yaml", values)
    files.write_json(run.lock, {"sources": {}})
    return run


def write_prompts(run: Run, tokens: int | None) -> None:
    """Six prompts of a, two of b, over two chunks; 40 characters each."""
    rows = [("a" if n < 6 else "b", n % 2, tokens) for n in range(8)]
    schema = {"source": pl.String, "chunk": pl.Int32, "tokens": pl.Int32}
    pl.DataFrame(rows, schema, orient="row").write_parquet(run.manifest)
    for chunk in run.chunks():
        prompts = [
            {"source": source, "messages": [{"role": "user", "content": "x" * 40}], "tools": None}
            for source, number, _ in rows
            if number == int(chunk)
        ]
        files.write_jsonl_zst(run.prompts(chunk), prompts)


def write_answers(run: Run, lengths: dict[str, list[int]], rate: float | None = None) -> None:
    for chunk in run.chunks():
        rows = [
            {"source": source, "turns": [{"usage": {"completion_tokens": length}}]}
            for source, found in lengths.items()
            for length in found
        ]
        files.write_jsonl_zst(run.completions(chunk), rows)
        files.write_json(run.sidecar(chunk), {})
    if rate is not None:
        files.write_json(run.summary, {"tokens_per_second": rate})


def test_without_earlier_runs_answers_are_as_long_as_they_may_be(tmp_path: Path) -> None:
    run = make_run(tmp_path, "m-1")
    write_prompts(run, None)
    told = estimate(run)
    assert [(row["source"], row["prompts"], row["prompt_tokens"]) for row in told["sources"]] == [
        ("a", 6, 60),
        ("b", 2, 20),
    ]
    assert told["output_tokens"] == 8 * 2 * 1000
    assert told["disk_bytes"] == 16 * BYTES_PER_ANSWER + 16_000 * BYTES_PER_TOKEN
    assert told["hours"] is None and told["gpu_hours"] is None and told["store_bytes"] is None
    text = estimate_table(told)
    assert "answers: 1,000 tokens each (sampling.max_tokens)" in text
    assert "4 characters a token" in text and "no earlier run tells the rate" in text and "~60" in text
    assert "~80" in text  # of all, too


def test_chunks_that_are_not_here_are_not_looked_at(tmp_path: Path) -> None:
    """Those of a run that is all in the bucket, or a deleted one."""
    run = make_run(tmp_path, "m-1")
    write_prompts(run, None)
    run.prompts("00000").unlink()
    assert estimate(run)["prompt_tokens"] == 80
    run.prompts("00001").unlink()
    told = estimate(run)
    assert told["prompts"] == 8 and told["prompt_tokens"] == 0 and not told["prompt_tokens_counted"]
    assert "none of their files is here" in estimate_table(told)


def test_earlier_answers_count_by_source_up_to_max_tokens(tmp_path: Path) -> None:
    write_answers(make_run(tmp_path, "m-0"), {"a": [100, 300], "c": [9]})
    long = make_run(tmp_path, "m-2", sampling={"max_tokens": 9000})
    write_answers(long, {"a": [5000, 5000]})
    run = make_run(tmp_path, "m-1", publish={"store": "s3", "bucket": "bkt"})
    write_prompts(run, 7)
    (tmp_path / "m").symlink_to("m-0")
    told = estimate(run)
    assert sorted(told["earlier_runs"]) == ["m-0", "m-2"]
    by_source = {row["source"]: row for row in told["sources"]}
    assert by_source["a"]["output_tokens"] == 12 * (100 + 300 + 1000 + 1000) / 4
    assert by_source["b"]["output_tokens"] == 4 * 1000
    assert told["prompt_tokens"] == 56 and all(row["prompt_tokens_counted"] for row in told["sources"])
    assert told["store_bytes"] > 4 * told["output_tokens"]
    assert "answers of b: 1,000 tokens each" in estimate_table(told)


def test_an_answer_that_was_cut_earlier_counts_as_long_as_it_may_be(tmp_path: Path) -> None:
    write_answers(make_run(tmp_path, "m-0", sampling={"max_tokens": 300}), {"a": [100, 300]})
    run = make_run(tmp_path, "m-1")
    write_prompts(run, 7)
    told = {row["source"]: row["output_tokens"] for row in estimate(run)["sources"]}
    assert told["a"] == 12 * (100 + 1000) / 2


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"name": "other"}, True),
        ({"model": {"path": "o/other"}}, False),
        ({"model": {"path": "o/m", "revision": "v2"}}, False),
        ({"sampling": {"thinking": True}}, False),
    ],
)
def test_only_runs_that_answer_alike_are_looked_at(tmp_path: Path, changes: dict[str, Any], fits: bool) -> None:
    write_answers(make_run(tmp_path, "m-0", **changes), {"a": [100]})
    run = make_run(tmp_path, "m-1")
    write_prompts(run, 7)
    assert estimate(run)["earlier_runs"] == (["m-0"] if fits else [])


def test_hours_follow_from_the_newest_measured_rate(tmp_path: Path) -> None:
    gpus = {"servers": {"count": 4, "gpus_per_server": 2}}
    write_answers(make_run(tmp_path, "m-0", **gpus), {"a": [100], "b": [100]}, rate=2.0)
    run = make_run(tmp_path, "m-1")
    write_prompts(run, 7)
    told = estimate(run)
    assert told["output_tokens"] == 1600
    assert (told["measured_in"], told["hours"], told["gpu_hours"]) == ("m-0", 0.22, 1.78)
    assert "1.78 GPU-hours; 0.22 hours at 2.0 tokens/s, as m-0 had" in estimate_table(told)
    make_run(tmp_path, "m-0")
    assert estimate(run)["gpu_hours"] is None  # `auto`: nobody says how many there were


def test_an_earlier_run_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    broken = make_run(tmp_path, "m-0")
    write_answers(broken, {"a": [100]})
    broken.completions("00001").write_bytes(b"no zstd")
    (tmp_path / "m-9").mkdir()
    (tmp_path / "m-9" / "lock.json").write_text("{half")
    (tmp_path / "m-9" / "run.yaml").write_text("{half")
    run = make_run(tmp_path, "m-1")
    write_prompts(run, 7)
    told = estimate(run)
    assert told["earlier_runs"] == [] and all(not row["answers_looked_at"] for row in told["sources"])


def test_whole_conversations_have_an_answer_for_each_recorded_turn(tmp_path: Path) -> None:
    run = make_run(tmp_path, "m-1", prompts={"turns": "all"})
    write_prompts(run, None)
    answered = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    for chunk in run.chunks():
        prompts = [{"source": "a", "messages": answered * 3, "tools": None}] * 3
        prompts.append({"source": "b", "messages": answered[:1], "tools": None})
        files.write_jsonl_zst(run.prompts(chunk), prompts)
    told = estimate(run)
    assert [row["output_tokens"] for row in told["sources"]] == [6 * 2 * 3 * 1000, 2 * 2 * 1000]
    assert "1,000 tokens for each recorded turn (sampling.max_tokens)" in estimate_table(told)

"""A run that takes nothing again, nothing of a benchmark, and nothing too long; and what it will cost."""

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import polars as pl
import pytest

from tests.standin.project import ROOT, Project
from tests.standin.tiny_tokenizer import make_tokenizer
from workflow_scripts import files

BENCHMARK = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."


def taken(project: Project) -> set[str]:
    run = project.made
    return {row["messages"][0]["content"] for chunk in run.chunks() for row in files.read_jsonl_zst(run.prompts(chunk))}


def write_benchmark(project: Project) -> None:
    rows = [{"question": "Another question, as long as it has to be to have thirteen words in it.", "answer": "1"}]
    rows.append({"question": BENCHMARK, "answer": "72"})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    files.write_bytes(project.folder / "benchmarks" / "math.jsonl", text.encode())


@pytest.fixture
def grown(finished: Project) -> Project:
    """After a finished run: a larger one of the same name, which excludes it."""
    project = finished
    project.write_rows(
        "questions",
        [{"prompt": f"Question {n}?"} for n in range(15)]
        + [{"prompt": "QUESTION  3?"}, {"prompt": f"Solve this. {BENCHMARK}"}, {"prompt": "long " * 200}],
    )
    write_benchmark(project)
    make_tokenizer(project.folder / "tokenizer")
    project.config["prompts"] = {
        "exclude": [str(project.made.folder.relative_to(project.folder))],
        "decontaminate": ["benchmarks/*.jsonl"],
        "max_prompt_tokens": 150,
    }
    project.config["model"]["tokenizer"] = "tokenizer"
    return project


def test_each_drop_is_on_file_and_the_estimate_told(grown: Project) -> None:
    first = grown.made
    result = grown.run("prompts")
    assert result.code == 0, result.output
    assert grown.made.name != first.name
    assert taken(grown) == {"Question 12?", "Question 13?", "Question 14?"}

    drops = pl.read_parquet(grown.made.dropped)
    assert Counter(drops["reason"]) == {"excluded": 25, "contaminated": 1, "too_long": 1}
    assert all(
        place.startswith(f"results/{first.name}/manifest.parquet:")
        for place in drops.filter(pl.col("reason") == "excluded")["repeats"]
    )
    [benchmark] = drops.filter(pl.col("reason") == "contaminated").iter_rows(named=True)
    assert benchmark["repeats"] == "benchmarks/math.jsonl:1" and "sold clips to 48 of her" in benchmark["detail"]
    [long] = drops.filter(pl.col("reason") == "too_long").iter_rows(named=True)
    assert "prompts.max_prompt_tokens is 150" in long["detail"]

    manifest = pl.read_parquet(grown.made.manifest)
    assert manifest["tokens"].null_count() == 0 and manifest["tokens"].max() < 60  # type: ignore[operator]
    assert (grown.made.folder / "logs" / "manifest.log").read_text() == ""  # the tokenizer's library has much to say
    told = files.read_json(grown.made.estimate)
    assert told["earlier_runs"] == [first.name] and told["prompts"] == 3
    assert told["prompt_tokens"] == manifest["tokens"].sum()
    assert 0 < told["output_tokens"] < 3 * 200  # as the first run's answers were, not as max_tokens allows
    assert result.lines("what it will take") and len(result.lines("  questions ")) == 1

    grown.finish()  # the stand-in gives no chat template; the run goes on to its end


def test_a_job_that_finds_other_bytes_fails_plainly(fresh: Project) -> None:
    write_benchmark(fresh)
    fresh.config["prompts"] = {"decontaminate": ["benchmarks/*.jsonl"]}
    assert fresh.run("prompts", "--until", "source").code == 0
    (fresh.folder / "benchmarks" / "math.jsonl").write_text('{"question": "Other?"}\n')
    job = subprocess.run(
        [sys.executable, "-m", "workflow_scripts.prompts.manifest", fresh.made.manifest],
        cwd=fresh.folder,
        env=fresh.environ(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
    )
    assert job.returncode == 1 and not fresh.made.manifest.exists()
    assert job.stderr.startswith("error: prompts.decontaminate: benchmarks/math.jsonl has changed since this run began")


@pytest.mark.parametrize(
    ("prompts", "line"),
    [
        ({"exclude": ["results/nowhere"]}, "prompts.exclude: results/nowhere: no such file or folder"),
        ({"decontaminate": ["none.jsonl"]}, "prompts.decontaminate: none.jsonl: no such file or folder"),
    ],
)
def test_a_missing_input_ends_the_plan(fresh: Project, prompts: dict[str, Any], line: str) -> None:
    fresh.config["prompts"] = prompts
    result = fresh.run("-n")
    assert result.code != 0 and f"my.yaml: {line}" in result.output and "Traceback" not in result.output, result.output


def test_a_missing_tokenizer_ends_the_run_before_its_first_job(fresh: Project) -> None:
    fresh.config["prompts"] = {"max_prompt_tokens": 100}
    (fresh.folder / "model" / "tokenizer.json").unlink()
    assert fresh.run("-n").code == 0
    result = fresh.run("prompts")
    assert result.code != 0 and not result.jobs, result.output
    assert "model.path: model holds no tokenizer" in result.output and "Traceback" not in result.output

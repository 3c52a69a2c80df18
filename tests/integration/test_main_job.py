"""The main job on real parts: the real snakemake, SGLang on the CPU with real small models, and a real S3 server."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import datasets
import polars as pl
import pytest
from transformers import AutoTokenizer

from tests.integration.real_project import SECONDS, completions, real
from tests.integration.real_store import check_bucket, embedded_store
from tests.standin.project import Project
from tests.standin.waiting import until
from workflow_scripts import files
from workflow_scripts.prompts.lengths import Counter
from workflow_scripts.serving import model
from workflow_scripts.serving.environment import Environment
from workflow_scripts.sources.prompt_ids import prompt_side

# Renders every prompt and decodes every answer with transformers, in the server environment.
CHECK_IDS = """
import json, sys
from transformers import PreTrainedTokenizerFast
tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
for line in sys.stdin:
    row = json.loads(line)
    turn, answer = row["turns"][0], row["messages"][-1]["content"]
    rendered = tokenizer.apply_chat_template(row["messages"][:-1], tools=row["tools"], add_generation_prompt=True)
    ids = rendered["input_ids"] if not isinstance(rendered, list) else rendered
    assert turn["prompt_token_ids"] == ids, (row["messages"], tokenizer.decode(turn["prompt_token_ids"]))
    said = tokenizer.decode(turn["response_token_ids"], skip_special_tokens=True)
    assert said.strip() == answer.strip(), (said, answer)
print("same")
"""


@pytest.fixture(scope="module")
def finished(env: Environment, seaweedfs: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A whole run of the embedded model, published to the embedded store."""
    model.ensure("embedded:SmolLM2-135M-Instruct", None, env.python)
    project = real(tmp_path_factory.mktemp("main"), "embedded:SmolLM2-135M-Instruct", "main")
    project.config["publish"] = {"store": "embedded", "bucket": "drafts", "prefix": "demo/"}
    try:
        result = project.start().wait(SECONDS)
        assert result.code == 0, result.output
        yield project
    finally:
        project.end_processes()


def test_every_prompt_is_answered_and_no_process_is_left(finished: Project) -> None:
    finished.audit()
    summary = files.read_json(finished.made.summary)
    assert (summary["prompts"], summary["completions"], summary["failures"]) == (9, 9, 0)
    answers = {row["messages"][-2]["content"]: row["messages"][-1]["content"] for row in completions(finished.made)}
    assert "Paris" in answers["What is the capital of France?"]


def test_the_stored_ids_are_what_transformers_renders_and_decodes(finished: Project, env: Environment) -> None:
    folder = model.ensure("embedded:SmolLM2-135M-Instruct", None, env.python)
    rows = "".join(json.dumps(row) + "\n" for row in completions(finished.made))
    said = subprocess.run(
        [env.python, "-c", CHECK_IDS, folder], input=rows, capture_output=True, text=True, check=False, timeout=300
    )
    assert said.stdout == "same\n", said.stderr[-2000:]


def test_prompts_are_counted_as_the_server_sees_them(finished: Project, env: Environment) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model.ensure("embedded:SmolLM2-135M-Instruct", None, env.python))
    rows = completions(finished.made)
    counted = Counter(tokenizer, {}).count((prompt_side(row["messages"]), row["tools"]) for row in rows)
    assert counted == [len(row["turns"][0]["prompt_token_ids"]) for row in rows]


def test_training_rows_are_the_completions_token_for_token(finished: Project) -> None:
    run = finished.made
    shards = sorted(str(path) for path in run.folder.glob("training/*/train-*.parquet"))
    rows = datasets.load_dataset("parquet", data_files=shards, split="train", cache_dir=str(finished.folder / "cache"))
    by_id = {row["prompt_id"]: row for row in completions(run)}
    assert len(rows) == len(by_id)
    for row in rows:
        turn = by_id[row["prompt_id"]]["turns"][0]
        assert row["input_ids"] == turn["prompt_token_ids"] + turn["response_token_ids"]
        assert row["loss_mask"] == [0] * len(turn["prompt_token_ids"]) + [1] * len(turn["response_token_ids"])


def test_the_store_holds_the_files_byte_for_byte(finished: Project) -> None:
    run = finished.made
    with embedded_store(run) as client:
        paths = check_bucket(run, client, "drafts", "demo/")
    assert paths >= {f"completions/{chunk}.{kind}" for chunk in run.chunks() for kind in ("jsonl.zst", "json")}


def test_a_lost_chunk_is_fetched_and_nothing_new_is_published(finished: Project) -> None:
    run = finished.made
    before = {path: path.read_bytes() for path in (run.completions("00001"), *run.folder.glob("published/*/*.json"))}
    run.completions("00001").unlink()
    run.journal("00001").rename(finished.folder / "journal-moved-away")
    result = finished.start().wait(SECONDS)
    assert result.code == 0, result.output
    assert [job for job in result.jobs if job.startswith("Chunk")] == ["Chunk 00001"]
    assert "chunk 00001: fetched from the bucket and verified" in result.output
    assert {path: path.read_bytes() for path in before} == before
    finished.audit()


def test_a_thinking_model_killed_at_work_goes_on_and_its_thoughts_are_kept_apart(
    env: Environment, tiny_qwen3: Path, tmp_path: Path
) -> None:
    project = real(tmp_path, str(tiny_qwen3), "thinking")
    project.config["sampling"] = {"temperature": 0.0, "max_tokens": 64, "thinking": True}
    project.config["servers"]["args"] |= {"reasoning-parser": "qwen3", "max-running-requests": 1}
    rows = [{"prompt": text, "response": "?"} for text in ("what is 12 times 7", "hello how are you", "tell me a joke")]
    project.write_rows("questions", [*rows, *({"prompt": f"what is {n} times 7"} for n in range(20, 60))])
    try:
        running = project.start()
        until(lambda: project.results.exists() and list(project.results.glob("*/journal/*")) != [], SECONDS)
        until(lambda: project.journaled() >= 3, SECONDS)
        os.kill(running.pid, signal.SIGKILL)
        running.process.wait()
        project.no_process_left()
        safe = project.journaled()
        assert 3 <= safe < 47
        result = project.start().wait(SECONDS)
        assert result.code == 0, result.output
        project.audit()
        answered = {row["messages"][-2]["content"]: row for row in completions(project.made)}
        assert len(answered) == 47
        said = answered["what is 12 times 7"]["messages"][-1]
        assert said["reasoning_content"].strip() == "The request looks like math." and said["content"].strip() == "math"

        project.config["sampling"]["max_tokens"] = 5
        result = project.start().wait(SECONDS)
        assert result.code == 0, result.output
        assert files.read_json(project.made.summary)["classes"].keys() == {"cut_in_thinking"}
        table = pl.read_parquet(project.made.manifest)
        assert len(table) == 47
    finally:
        project.end_processes()

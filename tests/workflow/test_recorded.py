"""`training.answers: recorded`: the datasets' own answers, without a server, and never among the target's own."""

from typing import Any

import orjson
import pyarrow.parquet as pq
from transformers import AutoTokenizer

from tests.standin.project import Project
from tests.standin.tiny_tokenizer import make_tokenizer
from workflow_scripts import files

FORMATS = ["parquet", "jsonl", "conversations"]


def test_recorded_answers_are_exported_without_a_server_and_beside_generated_ones(fresh: Project) -> None:
    make_tokenizer(fresh.folder / "tokenizer", "chatml")
    fresh.make_model(400)
    fresh.config["model"]["tokenizer"] = "tokenizer"
    generated = fresh.config["training"]
    recorded = {**generated, "answers": "recorded", "formats": FORMATS, "draft_vocabulary": 50}
    fresh.config["training"] = recorded
    fresh.write_rows("more", [{"prompt": "Nobody answers."}])
    fresh.config["sources"]["more"] = {"path": "data/more.jsonl", "shape": "prompt_response"}
    result = fresh.run()
    assert result.code == 0, result.output
    assert not [job for job in result.jobs if job.startswith(("Chunk ", "The account", "The servers", "The target"))]
    assert "off-policy: the datasets' own answers" in result.output and fresh.server_starts() == 0
    (index,) = fresh.made.folder.glob("training/*/training.json")
    assert index.parent.name.startswith("recorded-")
    told = files.read_json(index)
    assert (told["answers"], told["on_policy"], told["rows"]) == ("recorded", False, 24)
    assert told["dropped"] == {"no recorded answer": 1} and "turns, dropped: 1 no recorded answer" in result.output
    assert {"d2t-50.npy", "t2d-50.npy"} <= {entry["path"] for entry in told["files"]}
    tokenizer: Any = AutoTokenizer.from_pretrained(fresh.folder / "tokenizer")
    table = pq.read_table(index.parent / "train-00000.parquet")
    assert table.schema.metadata[b"on_policy"] == b"false"
    rows = table.to_pylist()
    said = {
        tokenizer.decode([token for token, on in zip(row["input_ids"], row["loss_mask"], strict=True) if on])
        for row in rows
    }
    assert said == {"Old.<|im_end|>", *(f"Old {number}.<|im_end|>" for number in range(12))}
    for path in index.parent.rglob("*.jsonl"):
        assert {orjson.loads(line)["on_policy"] for line in path.read_bytes().splitlines()} == {False}
    assert "Nothing to be done" in fresh.run().output

    run = fresh.made
    fresh.config["training"] = generated
    fresh.finish()  # the same prompts, answered
    assert fresh.made.folder == run.folder and len(list(run.folder.glob("training/*/training.json"))) == 2
    assert index.exists() and fresh.server_starts() > 0
    fresh.config["training"] = recorded
    assert "Nothing to be done" in fresh.run().output
    assert "no prompt is asked" in fresh.run("redrive").output
    index.touch()  # an export after the account, which is not its
    before = run.summary.read_bytes()
    result = fresh.run("report")
    assert result.code != 0 and "the account and report are of answers" in result.output
    assert run.summary.read_bytes() == before


def test_recorded_answers_are_not_published(fresh: Project) -> None:
    fresh.config["training"] = {"answers": "recorded"}
    fresh.config["publish"] = {"store": "s3", "bucket": "bucket"}
    result = fresh.run("-n")
    assert result.code != 0 and "a run's prefix in a store is for what its model answered" in result.output

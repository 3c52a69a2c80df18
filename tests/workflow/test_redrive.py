"""What failed for good is asked once more, into files of its own."""

import json
import shutil
from pathlib import Path

from tests.integration.real_store import embedded_store
from tests.standin.project import Project
from tests.workflow.bucket_copy import download, load
from workflow_scripts import files
from workflow_scripts.serving.environment import Environment


def failing(*words: str) -> str:
    return json.dumps({"refuse_on": list(words)})


def test_failures_are_asked_again_and_nothing_else(prepared: Project) -> None:
    prepared.config["sampling"]["n"] = 2
    prepared.finish(STANDIN_FAULTS=failing("Question 1?", "Chat 5?", "Chat 7?"))
    folder = prepared.made.folder
    first = prepared.tree(folder / "completions")
    summary = files.read_json(prepared.made.summary)
    assert (summary["completions"], summary["failures"], summary["failure_classes"]) == (42, 6, {"refused": 6})
    asked = len(prepared.requests())

    result = prepared.finish("redrive", STANDIN_FAULTS=failing("Chat 7?"))
    assert result.jobs[0] == "Redrive r1", result.output
    assert sorted(prepared.requests()[asked:]) == sorted(2 * ["Question 1?", "Chat 5?", "Chat 7?"])
    again = prepared.tree(folder / "completions")
    assert {name: again[name] for name in first} == first  # finished files never change
    assert set(again) - set(first) == {"r1.json", "r1.jsonl.zst", "r1.failures.jsonl.zst"}
    summary = files.read_json(prepared.made.summary)
    assert (summary["completions"], summary["failures"], summary["redrives"]) == (46, 2, 1)
    assert summary["training_rows"] == 46

    asked = len(prepared.requests())
    assert prepared.run().code == 0 and len(prepared.requests()) == asked
    prepared.finish("redrive")
    assert prepared.requests()[asked:] == ["Chat 7?", "Chat 7?"]
    summary = files.read_json(prepared.made.summary)
    assert (summary["completions"], summary["failures"], summary["redrives"]) == (48, 0, 2)

    result = prepared.run("redrive")
    assert result.code != 0 and "no prompt has failed: there is nothing to ask again" in result.output
    assert "Traceback" not in result.output


def test_a_redrive_of_an_unfinished_run_is_refused(prepared: Project) -> None:
    result = prepared.run("redrive")
    assert result.code != 0 and "3 of 3 chunks are not finished: say the line without `redrive` first" in result.output
    assert prepared.requests() == []


def test_a_redrive_is_published_and_fetched(prepared: Project, seaweedfs: Environment, tmp_path: Path) -> None:
    (prepared.home / "envs" / seaweedfs.folder.name).symlink_to(seaweedfs.folder)
    prepared.config["publish"] = {"store": "embedded", "bucket": "draftmill", "prefix": "small/"}
    prepared.finish(STANDIN_FAULTS=failing("Chat 5?"))
    published = {path.name: path.read_bytes() for path in prepared.made.folder.glob("published/*/0000.json")}
    servers = prepared.config["servers"]
    prepared.config["servers"] = {"engine": "sglang", "count": 8}
    result = prepared.run("redrive")  # all chunks are in the bucket, but this one needs GPUs
    assert result.code != 0 and result.lines("error: gpus: "), result.output
    prepared.config["servers"] = servers
    prepared.finish("redrive")
    receipts = {path.name: files.read_json(path)["objects"] for path in prepared.made.folder.glob("published/*/*.json")}
    assert len(receipts["r1.json"]) == 3
    assert "index.2.json" in {item["path"] for item in receipts["index.json"]}
    assert {path.name: path.read_bytes() for path in prepared.made.folder.glob("published/*/0000.json")} == published
    assert files.read_json(prepared.made.summary)["failures"] == 0

    with embedded_store(prepared.made) as client:
        copy = download(client, prepared.made, tmp_path / "copy")
    assert len(set(load(str(copy), copy)["prompt_id"])) == 24  # by the first card, which is the one that is read
    cards = [(copy / name).read_text() for name in ("README.md", "README.2.md")]
    assert "23 completions of 24 prompts" in cards[0] and "1 ended without one" in cards[0]
    assert "24 completions of 24 prompts" in cards[1] and "0 ended without one" in cards[1]

    asked = len(prepared.requests())
    made = {path: path.read_bytes() for path in prepared.made.chunk_files("r1")}
    for path in [*made, prepared.made.journal("r1")]:
        path.unlink()
    result = prepared.finish("redrive")
    assert "chunk r1: fetched from the bucket and verified" in result.output
    assert {path: path.read_bytes() for path in made} == made and len(prepared.requests()) == asked

    shutil.rmtree(prepared.made.folder)  # as on a new machine
    result = prepared.run()
    assert result.code != 0 and "the bucket holds what was asked again (r1)" in result.output, result.output
    assert "Traceback" not in result.output
    result = prepared.run()
    assert result.code == 0, result.output
    assert {path: path.read_bytes() for path in made} == made and len(prepared.requests()) == asked
    assert files.read_json(prepared.made.summary)["redrives"] == 1

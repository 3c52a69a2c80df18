"""A whole run into the real S3 server, and back out of it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.real_store import raw_client, running_seaweed
from tests.standin.project import ROOT, Project
from tests.standin.waiting import until
from tests.workflow.bucket_copy import download, load
from workflow_scripts import files
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.environment import Environment


def receipts(project: Project) -> dict[str, Any]:
    return {path.name: files.read_json(path) for path in project.made.folder.glob("published/*/*.json")}


def test_a_run_is_published_though_the_store_is_killed_and_a_deleted_chunk_fetched(
    prepared: Project, seaweedfs: Environment
) -> None:
    (prepared.home / "envs" / seaweedfs.folder.name).symlink_to(seaweedfs.folder)
    prepared.config["publish"] = {"store": "embedded", "bucket": "draftmill", "prefix": "small/"}
    run = prepared.made
    running = prepared.start(STANDIN_FAULTS='{"delay": 0.3}')
    until(lambda: list(run.folder.glob("published/*/start.json")))
    state = supervisor.read_state(run.store)
    assert state is not None and state.service is not None
    os.kill(state.service.pid, signal.SIGKILL)
    result = running.wait()
    if result.code != 0:  # else a later job started it again
        result = prepared.finish()
    prepared.audit()
    argv = [sys.executable, "-m", "workflow_scripts.publishing.verify", str(run.folder), "--deep"]
    environ = prepared.environ(PYTHONPATH=str(ROOT))
    done = subprocess.run(argv, cwd=prepared.folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "as published, byte for byte" in done.stdout, done.stdout + done.stderr
    published = receipts(prepared)
    assert set(published) == {"start.json", "0000.json", "training.json", "index.json"}
    objects = sum(len(receipt["objects"]) for receipt in published.values())
    # owner, lock, manifest.{json,parquet}, dropped; 3 x 3 files of chunks; one shard and its index; card and index
    assert objects == files.read_json(run.summary)["objects_published"] == 5 + 9 + 2 + 2
    assert f"  objects in the store  {objects}\n" in result.output

    again = prepared.run()
    assert again.code == 0 and "Nothing to be done" in again.output and again.jobs == [], again.output
    prepared.no_process_left()

    before = {path: path.read_bytes() for path in run.chunk_files("00001")}
    for path in [*before, run.journal("00001")]:
        path.unlink()
    result = prepared.finish()
    assert "chunk 00001: fetched from the bucket and verified" in result.output
    assert [job for job in result.jobs if job.startswith("Chunk 0")] == ["Chunk 00001"]
    assert {path: path.read_bytes() for path in before} == before
    assert len(prepared.requests()) == 24 and prepared.server_starts() == 1
    assert receipts(prepared) == published
    # index.json is the last that was published, and would have a number if it listed anything else.
    assert [item["path"] for item in published["index.json"]["objects"]] == ["README.md", "index.json"]
    assert len(files.read_json(run.published_listing)["paths"]) == objects  # at this start


def forget_all(project: Project) -> Project:
    """As on a new machine: nothing made, and neither an environment nor weights to make it with."""
    shutil.rmtree(project.results)
    shutil.rmtree(project.home)
    return project


def made(run: Run) -> dict[str, bytes]:
    """What is published of a run, and what its rules make, but stamps and times."""
    kept = [run.lock, *run.mix, *(path for chunk in run.chunks() for path in run.chunk_files(chunk))]
    shards = [path for path in run.folder.glob("training/**/*") if path.is_file()]
    return {str(run.relative(path)): path.read_bytes() for path in [*kept, *shards]}


def test_a_new_machine_takes_a_published_run_from_the_bucket(
    prepared: Project, seaweedfs: Environment, tmp_path: Path
) -> None:
    """It has no GPU, and needs none."""
    (tmp_path / "weed").mkdir()
    with running_seaweed(tmp_path / "weed", seaweedfs) as access:
        publish = {"store": "s3", "bucket": "draftmill", "prefix": "small/", "endpoint_url": access.endpoint_url}
        prepared.config["publish"] = publish
        prepared.config["training"] |= {"formats": ["parquet", "jsonl", "conversations"]}
        prepared.env |= {"AWS_ACCESS_KEY_ID": access.access_key, "AWS_SECRET_ACCESS_KEY": access.secret_key}
        prepared.finish()
        first, published, asked = made(prepared.made), receipts(prepared), len(prepared.requests())
        assert files.read_json(prepared.made.summary)["tokens_per_second"] > 0

        prepared.config["servers"] = {"engine": "sglang", "count": 8}
        result = forget_all(prepared).run()
        assert result.code == 0, result.output
        assert files.read_json(prepared.made.summary)["tokens_per_second"] is None  # no token was made here
        assert made(prepared.made) == first and receipts(prepared) == published
        assert len(prepared.requests()) == asked and not (prepared.home / "envs").exists()
        assert not list((prepared.results / "sources").glob("*/prompts.parquet"))
        assert "the manifest: fetched from the bucket and verified" in result.output
        assert "training shards: fetched from the bucket and verified" in result.output
        assert len(result.lines("source chats: not needed")) == len(result.lines("source questions: not needed")) == 1
        for stamp in ("environment", "model"):
            setup = files.read_json(prepared.made.folder / "setup" / f"{stamp}.json")
            assert setup == {"skipped": "no chunk is left to generate"}

        assert prepared.run("prompts").code == 0
        verified = prepared.run("verify")
        assert verified.code == 0 and "are as published" in verified.output, verified.output
        client = raw_client(access)
        copy = download(client, prepared.made, tmp_path / "copy")
        client.delete_object(Bucket="draftmill", Key=f"small/{prepared.made.name}/dropped.parquet")
        spoilt = prepared.run("verify")
        assert spoilt.code != 0 and "missing: dropped.parquet" in spoilt.output, spoilt.output
    is_usable(copy, prepared.made)


def test_a_store_that_cannot_be_used_ends_a_start_before_anything_is_read(fresh: Project) -> None:
    fresh.config["publish"] = {"store": "s3", "bucket": "draftmill", "endpoint_url": "http://127.0.0.1:1"}
    fresh.env |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    result = fresh.run()
    assert result.code != 0 and result.jobs == [] and "Traceback" not in result.output, result.output
    assert len(result.lines("error: s3://draftmill/small-")) == 1 and "no answer" in result.output
    assert fresh.requests() == [] and not (fresh.results / "sources").exists()


def test_receipts_that_are_torn_or_lost_are_made_again(prepared: Project, seaweedfs: Environment) -> None:
    (prepared.home / "envs" / seaweedfs.folder.name).symlink_to(seaweedfs.folder)
    prepared.config["publish"] = {"store": "embedded", "bucket": "draftmill", "prefix": "small/"}
    prepared.finish()
    published, asked = receipts(prepared), len(prepared.requests())
    (folder,) = {path.parent for path in prepared.made.folder.glob("published/*/*.json")}
    (folder / "0000.json").write_bytes((folder / "0000.json").read_bytes()[:100])
    (folder / "index.json").unlink()
    result = prepared.run()
    assert result.code != 0 and "Traceback" not in result.output
    assert f"{folder.name}/0000.json is not valid JSON" in result.output, result.output
    assert "delete it and run the same line again" in result.output
    (folder / "0000.json").unlink()
    prepared.finish()
    assert receipts(prepared) == published and len(prepared.requests()) == asked


def test_a_new_machine_goes_on_with_a_run_that_is_published_in_part(
    prepared: Project, seaweedfs: Environment, tmp_path: Path
) -> None:
    (tmp_path / "weed").mkdir()
    with running_seaweed(tmp_path / "weed", seaweedfs) as access:
        publish = {"store": "s3", "bucket": "draftmill", "prefix": "small/", "endpoint_url": access.endpoint_url}
        prepared.config["publish"] = publish
        prepared.env |= {"AWS_ACCESS_KEY_ID": access.access_key, "AWS_SECRET_ACCESS_KEY": access.secret_key}
        prepared.finish()
        first, asked, run = made(prepared.made), len(prepared.requests()), prepared.made
        client = raw_client(access)

        def forget(paths: list[str]) -> None:
            for path in paths:
                client.delete_object(Bucket="draftmill", Key=f"small/{run.name}/{path}")
            shutil.rmtree(prepared.results)

        sidecar = run.relative(run.sidecar("00001"))
        training = [path for path in first if path.startswith("training/")]
        forget(["README.md", "index.json", *training, sidecar])  # cut where the chunk's sidecar was about to go
        result = prepared.run()
        assert result.code != 0 and "chunk 00001 is half published" in result.output, result.output
        assert "Traceback" not in result.output and len(prepared.requests()) == asked

        forget([run.relative(path) for path in run.chunk_files("00001")])  # as told
        result = prepared.finish()
        fetched = [line for line in result.lines("chunk 0000") if line.endswith("fetched from the bucket and verified")]
        assert len(fetched) == 2
        assert len(prepared.requests()) == asked + 8
        same = [path for path in first if "00001" not in path and path not in training]
        assert {path: made(run)[path] for path in same} == {path: first[path] for path in same}
        assert [item["path"] for item in receipts(prepared)["index.json"]["objects"]] == ["README.md", "index.json"]


def is_usable(copy: Path, run: Run) -> None:
    """`datasets` reads the bucket's copy by its card."""
    completions = load(str(copy), copy)
    rows = [row for chunk in run.chunks() for row in files.read_jsonl_zst(run.completions(chunk))]
    assert [row["prompt_id"] for row in completions] == [row["prompt_id"] for row in rows]
    for key in ("prompt_token_ids", "response_token_ids", "class", "usage"):
        assert completions[0]["turns"][0][key] == rows[0]["turns"][0][key]
    assert completions[0]["messages"][-1]["content"] == rows[0]["messages"][-1]["content"]
    assert len(list(copy.glob("training/*/*/train/00000.jsonl"))) == 2
    training = load("parquet", copy, f"{copy}/training/*/train-*.parquet")
    assert len(training) == files.read_json(run.summary)["training_rows"]
    assert set(training[0]["loss_mask"]) == {0, 1} and len(training[0]["input_ids"]) == len(training[0]["loss_mask"])
    assert len(load("parquet", copy, f"{copy}/manifest.parquet")) == 24
    text = (copy / "README.md").read_text()
    assert (
        text.startswith("---\nlicense:\n- other\n") and "| questions | 12 | local files | as its owner says |" in text
    )

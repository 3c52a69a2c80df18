"""A whole run into the real embedded S3 server, and back out of it."""

from typing import Any

from tests.standin.project import Project
from workflow_scripts import files
from workflow_scripts.serving.environment import Environment


def receipts(project: Project) -> dict[str, Any]:
    return {path.name: files.read_json(path) for path in project.made.folder.glob("published/*/*.json")}


def test_a_run_is_published_and_a_deleted_chunk_fetched(prepared: Project, seaweedfs: Environment) -> None:
    (prepared.home / "envs" / seaweedfs.folder.name).symlink_to(seaweedfs.folder)
    prepared.config["publish"] = {"store": "embedded", "bucket": "draftmill", "prefix": "small/"}
    run = prepared.made
    result = prepared.finish()
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

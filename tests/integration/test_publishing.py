"""The publishing jobs against the real embedded S3 server."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.real_store import make_run, write_chunk, write_start, write_training
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.files import clean
from workflow_scripts.publishing import preflight, publish
from workflow_scripts.publishing.store import Store, open_store
from workflow_scripts.records import PublishedObject, Receipt
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


def call(*arguments: str | Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["publish", *map(str, arguments)])
        publish.main()


def objects(receipt: Path) -> list[PublishedObject]:
    value: Receipt = files.read_json(receipt)
    return value["objects"]


def test_a_run_is_published_by_its_jobs(results: Path, tmp_path: Path) -> None:
    run = make_run(results, "whole-run", chunks=52)
    preflight.preflight(run)
    write_start(run)
    for chunk in run.chunks():
        write_chunk(run, chunk)
    receipts = run.folder / "published" / "hash"
    call("start", receipts / "start.json")
    assert [item["path"] for item in objects(receipts / "start.json")] == [
        "dropped.parquet",
        "lock.json",
        "manifest.json",
        "manifest.parquet",
        "owner.json",
    ]
    assert [item["rows"] for item in objects(receipts / "start.json")] == [None, None, None, 208, None]
    call("batch", receipts / "0001.json")
    assert [item["path"] for item in objects(receipts / "0001.json")] == [
        f"completions/{chunk}{end}"
        for chunk in ("00050", "00051")
        for end in (".failures.jsonl.zst", ".json", ".jsonl.zst")
    ]
    assert [item["rows"] for item in objects(receipts / "0001.json")] == [1, None, 3, 1, None, 3]
    call("batch", receipts / "0000.json")

    call("training", receipts / "training.json", write_training(run))
    assert [(item["path"], item["rows"]) for item in objects(receipts / "training.json")] == [
        ("training/abc/train-00000.parquet", 7),
        ("training/abc/training.json", None),
    ]

    parts = [receipts / name for name in ("start.json", "0000.json", "0001.json", "training.json")]
    call("index", receipts / "index.json", *parts)
    card, index = objects(receipts / "index.json")
    assert (card["path"], index["path"]) == ("README.md", "index.json")
    store = open_store(run)
    store.fetch("index.json", tmp_path / "index.json")
    listed = files.read_json(tmp_path / "index.json")
    paths = [item["path"] for item in listed["objects"]]
    assert listed["run"] == run.name and paths == sorted(store.listing().keys() - {"index.json"})
    assert len(paths) == 5 + 3 * 52 + 2 + 1

    # The same again is nothing new; another list of objects gets a number.
    before = store.listing()
    call("start", receipts / "start.json")
    call("batch", receipts / "0001.json")
    call("index", receipts / "index.json", *reversed(parts))
    assert objects(receipts / "index.json") == [card, index] and store.listing() == before
    fewer = [parts[0], parts[3]]
    call("index", receipts / "index.json", *fewer)
    assert [item["path"] for item in objects(receipts / "index.json")] == ["README.md", "index.2.json"]
    call("index", receipts / "index.json", *fewer, parts[1])
    assert objects(receipts / "index.json")[1]["path"] == "index.3.json"
    call("index", receipts / "index.json", *fewer)
    assert objects(receipts / "index.json")[1]["path"] == "index.2.json"
    assert store.listing().keys() - before.keys() == {"index.2.json", "index.3.json"}


def test_a_batch_with_a_missing_file_publishes_nothing(run: Run, store: Store) -> None:
    for chunk in run.chunks():
        write_chunk(run, chunk)
    run.failures("00001").unlink()
    with pytest.raises(PlainError, match=r"00001\.failures\.jsonl\.zst is missing \(1 of 6"):
        publish.publish_batch(run, store, "0000")
    assert store.listing() == {}


def test_a_changed_chunk_file_is_not_published(run: Run, store: Store) -> None:
    for chunk in run.chunks():
        write_chunk(run, chunk)
    files.write_jsonl_zst(run.completions("00000"), [{"row": "changed"}])
    with pytest.raises(PlainError, match=r"00000\.jsonl\.zst is not the file that was finished"):
        publish.publish_batch(run, store, "0000")
    assert not any("00000" in path for path in store.listing())


def test_an_index_of_contradicting_receipts_is_refused(run: Run, store: Store, tmp_path: Path) -> None:
    receipts = [tmp_path / "0000.json", tmp_path / "0001.json"]
    for number, receipt in enumerate(receipts):
        item = PublishedObject(path="a", key="k", bytes=1, sha256=str(number) * 64, crc64nvme="", rows=None)
        files.write_json(receipt, Receipt(objects=[item]))
    with pytest.raises(PlainError, match="two receipts name a"):
        publish.publish_index(run, store, receipts)


def test_no_index_is_written_of_objects_that_the_store_has_lost(run: Run, store: Store, foreign: "S3Client") -> None:
    write_start(run)
    for chunk in run.chunks():
        write_chunk(run, chunk)
    receipts = run.folder / "published" / "hash"
    parts = [receipts / "start.json", receipts / "0000.json", receipts / "training.json"]
    call("start", parts[0])
    call("batch", parts[1])
    call("training", parts[2], write_training(run))
    before = store.listing()
    for path in ("manifest.json", "completions/00001.json"):
        foreign.delete_object(Bucket="draftmill", Key=store.key(path))
    lost = r"has lost 2 of the 13 objects .*\(completions/00001\.json, manifest\.json\); .*Delete .*/published/hash and"
    with pytest.raises(PlainError, match=lost):
        publish.publish_index(run, store, parts)
    assert "index.json" not in store.listing()
    shutil.rmtree(receipts)  # as told
    call("start", parts[0])
    call("batch", parts[1])
    call("training", parts[2], run.folder / "training" / "abc" / "training.json")
    call("index", receipts / "index.json", *parts)
    assert store.listing().keys() == before.keys() | {"README.md", "index.json"}


def test_what_the_store_has_lost_does_not_pass_for_published(run: Run, store: Store, foreign: "S3Client") -> None:
    for chunk in run.chunks():
        write_chunk(run, chunk)
    call("batch", run.folder / "published" / "hash" / "0000.json")
    first, second = ({run.relative(path) for path in run.chunk_files(chunk)} for chunk in run.chunks())
    assert clean.Published(run, ask=True).has(first | second)
    foreign.delete_object(Bucket="draftmill", Key=store.key("completions/00001.json"))
    published = clean.Published(run, ask=True)
    assert published.has(first) and not published.has(second)
    assert clean.Published(run, ask=False).has(second)

"""Preflight, the publishing jobs and restore against the real embedded S3 server."""

import http.server
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.real_store import credentials, make_run, write_chunk, write_manifest, write_start, write_training
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.files import clean
from workflow_scripts.publishing import embedded, preflight, publish
from workflow_scripts.publishing.digests import digest
from workflow_scripts.publishing.restore import restore_chunk
from workflow_scripts.publishing.store import Store, open_store
from workflow_scripts.records import PublishedObject, Receipt
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


# --- preflight ---


def test_preflight_claims_lists_and_takes_the_published_lock(run: Run) -> None:
    preflight.preflight(run)
    store = open_store(run)
    assert files.read_json(run.published_listing)["paths"] == {
        "owner.json": {"key": f"demo/{run.name}/owner.json", "bytes": len(preflight.owner(run.name))}
    }
    store.create(b'{"revision":"published"}', "lock.json")
    preflight.preflight(run)
    assert files.read_json(run.lock) == {"revision": "published"}
    assert list(files.read_json(run.published_listing)["paths"]) == ["lock.json", "owner.json"]


def test_preflight_refuses_a_lock_that_work_was_built_on(run: Run) -> None:
    preflight.preflight(run)
    open_store(run).create(b'{"revision":"published"}', "lock.json")
    write_start(run, "local")
    with pytest.raises(PlainError, match=r"lock\.json differs"):
        preflight.preflight(run)
    assert files.read_json(run.lock) == {"revision": "local"}


def test_preflight_refuses_another_owner(store: Store, foreign: "S3Client", run: Run) -> None:
    content = b'{"run":"theirs","format":1}\n'
    metadata = {"run": "theirs", "sha256": digest(content).sha256}
    key = store.key("owner.json")
    foreign.put_object(Bucket="draftmill", Key=key, Body=content, Metadata=metadata, ChecksumAlgorithm="CRC64NVME")
    with pytest.raises(PlainError, match="object of run theirs"):
        preflight.preflight(run)
    assert foreign.get_object(Bucket="draftmill", Key=key)["Body"].read() == content


def test_preflight_refuses_a_prefix_that_something_else_filled(store: Store, foreign: "S3Client", run: Run) -> None:
    foreign.put_object(Bucket="draftmill", Key=store.key("stray.txt"), Body=b"x")
    with pytest.raises(PlainError, match=r"stray\.txt.*no owner\.json"):
        preflight.preflight(run)
    assert store.listing() == {"stray.txt": 1}


class CarelessStore(http.server.BaseHTTPRequestHandler):
    """An S3 that says 200 to everything; as HonestStore, 412 to every second write, but without checksums."""

    refuses = False
    writes = 0

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        refuse = False
        if self.command == "PUT":
            type(self).writes += 1
            refuse = self.refuses and self.writes > 1
        self.send_response(412 if refuse else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_HEAD = answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(("refuses", "words"), [(False, "ignores If-None-Match"), (True, "keeps no CRC64NVME")])
def test_preflight_refuses_a_careless_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool, words: str
) -> None:
    handler = type("Handler", (CarelessStore,), {"refuses": refuses, "writes": 0})
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(PlainError, match=words):
            preflight.preflight(make_run(tmp_path, "careless", "s3", endpoint_url=endpoint))
        server.shutdown()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("right", ""),
        ("bucket", "NoSuchBucket.*publish.bucket"),
        ("none", "no S3 credentials found.*AWS_PROFILE"),
        ("key", "InvalidAccessKeyId.*AWS_ACCESS_KEY_ID"),
        ("secret", "SignatureDoesNotMatch.*AWS_SECRET_ACCESS_KEY"),
        ("profile", "AWS_PROFILE"),
        ("down", "127.0.0.1.*no answer.*publish.endpoint_url"),
    ],
)
def test_a_wrong_setting_is_one_plain_line(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, words: str
) -> None:
    access = embedded.ensure_started(make_run(results, "settings"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}" if case == "down" else access.endpoint_url
        bucket = "absent" if case == "bucket" else "draftmill"
        run = make_run(tmp_path, f"settings-{case}", "s3", endpoint_url=endpoint, bucket=bucket)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong" if case == "key" else access.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" if case == "secret" else access.secret_key)
        if case != "profile":
            monkeypatch.delenv("AWS_PROFILE")
        if case == "none":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        if case == "right":
            preflight.preflight(run)
            assert open_store(run).listing().keys() == {"owner.json"}
            return
        with pytest.raises(PlainError, match=words) as caught:
            preflight.preflight(run)
        assert "\n" not in str(caught.value)


# --- jobs ---


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


# --- two machines, one run ---


def machine(run: Run, tmp_path: Path, revision: str = "1", word: str = "first") -> Run:
    """The same run in a folder of another machine, which publishes to the same store."""
    other = Run(tmp_path / "other" / run.name)
    access = embedded.ensure_started(run)
    shutil.copytree(run.store, other.store, ignore=shutil.ignore_patterns("*.sock", "data"))
    make_run(other.results, run.name, "s3", endpoint_url=access.endpoint_url)
    write_start(other, revision, word)
    return other


@pytest.fixture
def user(run: Run, foreign: "S3Client", monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded store's credentials, as a user's of it."""
    credentials(monkeypatch, embedded.ensure_started(run))


def start_files(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in [run.lock, *run.mix]}


def test_the_later_machine_takes_the_published_manifest(run: Run, user: None, tmp_path: Path) -> None:
    preflight.preflight(run)
    write_start(run)
    preflight.publish_lock(run)
    assert publish.settle_mix(run) is False
    other = machine(run, tmp_path, word="second")
    files.write_jsonl_zst(other.prompts("00000"), [])
    preflight.preflight(other)
    assert start_files(other) == start_files(run) and not other.prompts("00000").exists()


def test_who_loses_the_race_for_the_manifest_takes_the_winners(run: Run, user: None, tmp_path: Path) -> None:
    other = machine(run, tmp_path, revision="2", word="second")
    for one in (run, other):
        preflight.preflight(one)  # neither sees anything of the other's
    write_start(run)
    preflight.publish_lock(run)
    assert publish.settle_mix(run) is False
    other.manifest.unlink()  # it draws only now
    preflight.publish_lock(other)
    write_manifest(other)
    assert publish.settle_mix(other) is True
    assert start_files(other) == start_files(run)


def test_chunks_of_another_manifest_are_not_given_up(run: Run, user: None, tmp_path: Path) -> None:
    write_start(run)
    preflight.preflight(run)
    preflight.publish_lock(run)
    publish.settle_mix(run)
    other = machine(run, tmp_path, word="second")
    write_chunk(other, "00000")
    before = start_files(other)
    with pytest.raises(PlainError, match=r"manifest\.parquet differs from the published .*Move .* away"):
        preflight.preflight(other)
    assert start_files(other) == before


def test_a_manifest_whose_publisher_stopped_is_said(
    run: Run, user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preflight.preflight(run)
    write_start(run)
    open_store(run).create(run.manifest_json, "manifest.json")
    other = machine(run, tmp_path, word="second")
    monkeypatch.setattr(publish, "OTHER_SECONDS", 0.0)
    with pytest.raises(PlainError, match=r"dropped\.parquet at .* does not come"):
        publish.settle_mix(other)


# --- resuming from the bucket ---


def published_run(run: Run) -> dict[Path, bytes]:
    """Publish both chunks, list them, and remove the local files; returns what they were."""
    for chunk in run.chunks():
        write_chunk(run, chunk)
    preflight.preflight(run)
    publish.publish_batch(run, open_store(run), "0000")
    preflight.preflight(run)
    kept = {path: path.read_bytes() for chunk in run.chunks() for path in run.chunk_files(chunk)}
    for path in kept:
        path.unlink()
    return kept


def test_a_published_chunk_is_restored(run: Run) -> None:
    kept = published_run(run)
    assert restore_chunk(run, "00000") and restore_chunk(run, "00001")
    assert {path: path.read_bytes() for path in kept} == kept
    assert set((run.folder / "completions").iterdir()) == set(kept)


def test_without_a_listing_or_an_object_a_chunk_is_generated(run: Run) -> None:
    assert not restore_chunk(run, "00000")
    preflight.preflight(run)
    assert not restore_chunk(run, "00000")


def test_half_a_published_chunk_is_said_before_it_is_paid_for(run: Run) -> None:
    write_chunk(run, "00000")
    preflight.preflight(run)
    store = open_store(run)
    store.create(run.completions("00000"), run.relative(run.completions("00000")))
    preflight.preflight(run)
    with pytest.raises(PlainError, match=r"chunk 00000 is half published: .*00000\.json never arrived.*delete"):
        restore_chunk(run, "00000")
    # With its journal here, the job makes the same files again, and the upload goes on.
    run.journal("00000").parent.mkdir()
    run.journal("00000").touch()
    assert not restore_chunk(run, "00000")
    publish_rest = [store.create(path, run.relative(path)) for path in run.chunk_files("00000")]
    assert len(publish_rest) == 3
    assert restore_chunk(run, "00000")


def test_a_chunk_whose_sidecar_names_other_files_is_refused(run: Run, foreign: "S3Client") -> None:
    published_run(run)
    store = open_store(run)
    other = b"other rows"
    foreign.put_object(
        Bucket="draftmill",
        Key=store.key("completions/00000.jsonl.zst"),
        Body=other,
        Metadata={"run": run.name, "sha256": digest(other).sha256},
        ChecksumAlgorithm="CRC64NVME",
    )
    with pytest.raises(PlainError, match="is not the file that the sidecar"):
        restore_chunk(run, "00000")
    assert list((run.folder / "completions").iterdir()) == []


def test_a_chunk_of_other_prompts_is_refused(run: Run) -> None:
    published_run(run)
    files.write_jsonl_zst(run.prompts("00000"), [{"prompt_id": "other"}])
    with pytest.raises(PlainError, match="holds other prompts"):
        restore_chunk(run, "00000")
    assert list((run.folder / "completions").iterdir()) == []

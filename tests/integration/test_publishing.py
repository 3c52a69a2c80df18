"""Publishing against the real embedded S3 server."""

import http.server
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import polars
import pytest
from botocore.config import Config

from workflow_scripts import files, processes
from workflow_scripts.completions.finish import keys_sha256
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId
from workflow_scripts.publishing import embedded, preflight, publish
from workflow_scripts.publishing import store as store_module
from workflow_scripts.publishing.clients import Access
from workflow_scripts.publishing.digests import digest
from workflow_scripts.publishing.restore import restore_chunk
from workflow_scripts.publishing.store import Store, Taken, open_store
from workflow_scripts.records import PublishedObject, Receipt
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MIB = 1 << 20
T = TypeVar("T")


def make_run(results: Path, name: str, store: str = "embedded", chunks: int = 2, **publish: Any) -> Run:
    settings = {"store": store, "bucket": "draftmill", "prefix": "demo", **publish}
    run = Run(results / name)
    config = {
        "name": "demo",
        "sources": {"a": {"path": "a.jsonl", "shape": "messages"}},
        "chunks": {"count": chunks},
        "model": {"path": "model"},
        "publish": settings,
    }
    files.write_json(run.folder / "run.yaml", config)  # JSON is YAML
    return run


def write_start(run: Run, revision: str = "1") -> None:
    files.write_json(run.lock, {"revision": revision})
    write_manifest(run)
    files.write_json(run.manifest_json, {"got": 3})


def prompt_ids(chunk: str) -> list[str]:
    return [f"{chunk} {position}" for position in range(4)]


def write_manifest(run: Run) -> None:
    """Four prompts a chunk."""
    rows = [(ids, int(chunk), place) for chunk in run.chunks() for place, ids in enumerate(prompt_ids(chunk))]
    run.folder.mkdir(parents=True, exist_ok=True)
    polars.DataFrame(rows, ["prompt_id", "chunk", "position"], orient="row").write_parquet(run.manifest)


def write_chunk(run: Run, chunk: str, word: str = "first") -> None:
    """Three completions and a failure, for the chunk's prompts in the manifest."""
    if not run.manifest.exists():
        write_manifest(run)
    entries = {}
    for kind, path, rows in (("completions", run.completions(chunk), 3), ("failures", run.failures(chunk), 1)):
        files.write_jsonl_zst(path, [{"chunk": chunk, "word": word, "row": row} for row in range(rows)])
        entries[kind] = {"bytes": path.stat().st_size, "sha256": files.sha256_file(path), "rows": rows}
    fingerprint = {"content": {"model": "m"}, "speed": []}
    keys = keys_sha256((prompt_id, 0) for prompt_id in prompt_ids(chunk))
    sidecar = {"chunk": chunk, "prompts_sha256": "0" * 64, "keys_sha256": keys, **entries, "fingerprint": fingerprint}
    files.write_json(run.sidecar(chunk), sidecar)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A results folder whose store runs as long as this module's tests."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(processes.RUN_PROCESS_VARIABLE, str(ProcessId.here()))
        # None of these may have a say in the embedded store.
        patch.setenv("AWS_PROFILE", "nobody")
        patch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
        yield folder
        supervisor.stop(folder / ".store")


@pytest.fixture
def run(results: Path, request: pytest.FixtureRequest) -> Run:
    """A run of its own for each test."""
    return make_run(results, request.node.name.removeprefix("test_").replace("[", "-").rstrip("]"))


@pytest.fixture
def store(run: Run) -> Store:
    return open_store(run)


def raw_client(access: Access) -> "S3Client":
    """Somebody else's client: it overwrites."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=access.endpoint_url,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


@pytest.fixture
def foreign(run: Run, monkeypatch: pytest.MonkeyPatch) -> "S3Client":
    access = embedded.ensure_started(run)
    monkeypatch.delenv("AWS_PROFILE")
    return raw_client(access)


def from_threads(jobs: list[Callable[[], T]]) -> list[T | PlainError]:
    """What each job returned or raised, all started at once."""
    barrier = threading.Barrier(len(jobs))

    def call(job: Callable[[], T]) -> T | PlainError:
        barrier.wait()
        try:
            return job()
        except PlainError as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(call, jobs))


# --- the embedded server ---


def test_the_store_listens_on_127_0_0_1_only_and_keeps_its_secrets(run: Run) -> None:
    access = embedded.ensure_started(run)
    state = supervisor.read_state(run.store)
    assert state is not None and state.service is not None
    process = Path(f"/proc/{state.service.pid}")
    sockets = {link.readlink().name for link in (process / "fd").iterdir() if link.readlink().name.startswith("socket")}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1].split(":")[0])
    assert len(listening) == 8 and set(listening) == {"0100007F"}
    assert access.secret_key.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    for name in ("credentials.json", "s3.json"):
        assert (run.store / name).stat().st_mode & 0o777 == 0o600
    assert run.store.stat().st_mode & 0o777 == 0o700


def test_an_empty_store_takes_little_disk_and_many_buckets(run: Run, results: Path) -> None:
    for number in range(10):
        other = open_store(make_run(results, f"bucket-{number}", bucket=f"bucket-{number}"))
        other.create(b"content", "lock.json")
    allocated = sum(path.stat().st_blocks * 512 for path in (run.store / "data").rglob("*"))
    assert allocated < 64 * MIB


def test_objects_survive_kill_9(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(processes.RUN_PROCESS_VARIABLE, str(ProcessId.here()))
        run = make_run(tmp_path / "results", "killed")
        store = open_store(run)
        contents = {f"completions/{number:05d}.json": bytes([number]) * (100_000 + number) for number in range(40)}
        contents["large"] = bytes(range(256)) * (40 << 10)
        for path, content in contents.items():
            store.create(content, path)
        state = supervisor.read_state(run.store)
        assert state is not None and state.service is not None
        os.kill(state.service.pid, signal.SIGKILL)
        assert processes.wait_for_death(state.supervisor, 60)
        try:
            store = open_store(run)
            assert store.listing() == {path: len(content) for path, content in contents.items()}
            for path, content in contents.items():
                store.fetch(path, tmp_path / "fetched")
                assert (tmp_path / "fetched").read_bytes() == content
                assert store.create(content, path)["bytes"] == len(content)
        finally:
            supervisor.stop(run.store)


# --- objects ---


def test_an_object_is_created_with_checksum_and_metadata(run: Run, store: Store, foreign: "S3Client") -> None:
    made = store.create(b"123456789", "completions/00000.json", rows=4, fingerprint="f" * 64)
    assert made == PublishedObject(
        path="completions/00000.json",
        key=f"demo/{run.name}/completions/00000.json",
        bytes=9,
        sha256="15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
        crc64nvme="rosUhgp5mIg=",
        rows=4,
    )
    head = foreign.head_object(Bucket="draftmill", Key=made["key"], ChecksumMode="ENABLED")
    assert head["ChecksumCRC64NVME"] == made["crc64nvme"]
    assert head["Metadata"] == {"run": run.name, "sha256": made["sha256"], "rows": "4", "fingerprint": "f" * 64}


def test_the_same_content_again_is_our_own(store: Store, tmp_path: Path) -> None:
    # As after a reply that was lost: the object is there, and the caller does not know.
    (tmp_path / "file").write_bytes(b"content")
    made = store.create(tmp_path / "file", "lock.json")
    assert store.create(tmp_path / "file", "lock.json") == made
    assert store.listing() == {"lock.json": 7}


def test_other_content_of_our_run_is_refused(store: Store, tmp_path: Path) -> None:
    store.create(b"first", "lock.json")
    with pytest.raises(
        Taken, match=r"demo/other_content.*lock\.json.* another lock\.json of this run.*Delete"
    ) as caught:
        store.create(b"other", "lock.json")
    assert caught.value.same_run
    store.fetch("lock.json", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"first"


@pytest.mark.parametrize(
    ("metadata", "whose"),
    [({"run": "theirs-12345678"}, "object of run theirs-12345678"), ({}, "object that no run wrote")],
    ids=["theirs", "nobodys"],
)
def test_a_foreign_object_under_our_key_is_refused(
    store: Store, foreign: "S3Client", metadata: dict[str, str], whose: str
) -> None:
    key = store.key("lock.json")
    metadata = {**metadata, "sha256": digest(b"content").sha256}  # the very same content is foreign too
    foreign.put_object(Bucket="draftmill", Key=key, Body=b"content", Metadata=metadata, ChecksumAlgorithm="CRC64NVME")
    with pytest.raises(Taken, match=f"{whose}.*publish.prefix") as caught:
        store.create(b"content", "lock.json")
    assert not caught.value.same_run
    assert foreign.get_object(Bucket="draftmill", Key=key)["Metadata"] == metadata


def test_sixteen_writers_race_for_one_key(store: Store, tmp_path: Path) -> None:
    contents = [b"shared" if number % 2 else f"own {number}".encode() for number in range(16)]
    outcomes = from_threads([partial(store.create, content, "lock.json") for content in contents])
    won = [item for item in outcomes if not isinstance(item, PlainError)]
    store.fetch("lock.json", tmp_path / "fetched")
    winner = (tmp_path / "fetched").read_bytes()
    assert {item["sha256"] for item in won} == {digest(winner).sha256}
    assert len(won) == contents.count(winner)
    assert all(isinstance(item, Taken) for item in outcomes if isinstance(item, PlainError))


def test_content_that_changed_since_it_was_finished_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(PlainError, match="changed since"):
        store.create(tmp_path / "file", "lock.json", sha256="0" * 64)
    assert store.listing() == {}


def test_the_server_refuses_other_bytes_than_were_digested(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, path in ((10, "small"), (6 * MIB, "large")):
        wrong = replace(digest(b"other"), bytes=size)
        monkeypatch.setattr(store_module, "digest", lambda source, wrong=wrong: wrong)
        with pytest.raises(PlainError, match="store answered"):
            replace(store, part_bytes=5 * MIB).create(b"x" * size, path)
    assert store.listing() == {}


def test_a_missing_file_is_a_plain_line(store: Store, tmp_path: Path) -> None:
    with pytest.raises(PlainError, match="file can't be read"):
        store.create(tmp_path / "file", "lock.json")


# --- multipart ---


def test_a_large_file_goes_in_parts_and_is_checked_whole(store: Store, foreign: "S3Client", tmp_path: Path) -> None:
    store = replace(store, part_bytes=5 * MIB)
    content = bytes(range(256)) * (100 << 10)
    (tmp_path / "file").write_bytes(content)
    made = store.create(tmp_path / "file", "training/large")
    head = foreign.head_object(Bucket="draftmill", Key=made["key"], ChecksumMode="ENABLED", PartNumber=1)
    assert head["PartsCount"] == 5
    whole = foreign.head_object(Bucket="draftmill", Key=made["key"], ChecksumMode="ENABLED")
    assert (whole["ContentLength"], whole["ChecksumCRC64NVME"]) == (25 * MIB, digest(content).crc64nvme)
    assert store.create(tmp_path / "file", "training/large") == made
    assert store.fetch("training/large", tmp_path / "fetched") == made
    assert (tmp_path / "fetched").read_bytes() == content
    (tmp_path / "file").write_bytes(content[::-1])
    with pytest.raises(Taken):
        store.create(tmp_path / "file", "training/large")


def test_parts_are_not_joined_over_an_object(store: Store, foreign: "S3Client", tmp_path: Path) -> None:
    store = replace(store, part_bytes=5 * MIB)
    key = store.key("large")

    def plant(**_: Any) -> None:
        foreign.put_object(Bucket="draftmill", Key=key, Body=b"theirs", Metadata={"run": "theirs"})

    store.client.meta.events.register("before-call.s3.CompleteMultipartUpload", plant)
    with pytest.raises(Taken, match="an object of run theirs"):
        store.create(b"x" * (6 * MIB), "large")
    assert foreign.get_object(Bucket="draftmill", Key=key)["Body"].read() == b"theirs"
    assert foreign.list_multipart_uploads(Bucket="draftmill", Prefix=key).get("Uploads", []) == []


def test_large_files_race_for_one_key(store: Store, tmp_path: Path) -> None:
    contents = [bytes([number]) * (20 * MIB) for number in range(4)]
    outcomes = from_threads([partial(store.create, content, "large") for content in contents])
    (won,) = [item for item in outcomes if not isinstance(item, PlainError)]
    assert all(isinstance(item, Taken) for item in outcomes if item is not won)
    assert store.fetch("large", tmp_path / "fetched") == won


# --- fetching ---


def test_what_is_fetched_is_verified(store: Store, tmp_path: Path) -> None:
    made = store.create(b"content", "lock.json", rows=2)
    assert store.fetch("lock.json", tmp_path / "new" / "lock.json") == made
    assert (tmp_path / "new" / "lock.json").read_bytes() == b"content"


def corrupt(metadata: dict[str, str], body: bytes = b"content", checksum: str = "CRC64NVME") -> dict[str, Any]:
    return {"Body": body, "Metadata": metadata, "ChecksumAlgorithm": checksum}


@pytest.mark.parametrize(
    ("run_of_object", "sha256", "body", "checksum", "words"),
    [
        ("ours", "0" * 64, b"content", "CRC64NVME", "sha256 is .* metadata says 000"),
        ("ours", "right", b"changed", "CRC64NVME", "sha256 is"),
        ("ours", None, b"content", "CRC64NVME", "metadata says None"),
        ("theirs", "right", b"content", "CRC64NVME", "object of run theirs"),
        ("ours", "right", b"content", "SHA256", "keeps no CRC64NVME"),
    ],
    ids=["sha256", "body", "nosha256", "run", "nochecksum"],
)
def test_a_corrupt_object_is_not_fetched(
    store: Store,
    foreign: "S3Client",
    tmp_path: Path,
    run_of_object: str,
    sha256: str | None,
    body: bytes,
    checksum: Any,
    words: str,
) -> None:
    metadata = {"run": store.run if run_of_object == "ours" else run_of_object}
    if sha256 is not None:
        metadata["sha256"] = digest(b"content").sha256 if sha256 == "right" else sha256
    foreign.put_object(
        Bucket="draftmill", Key=store.key("lock.json"), Body=body, Metadata=metadata, ChecksumAlgorithm=checksum
    )
    with pytest.raises(PlainError, match=words):
        store.fetch("lock.json", tmp_path / "fetched")
    assert list(tmp_path.iterdir()) == []


def test_an_absent_object_is_a_plain_line(store: Store, tmp_path: Path) -> None:
    with pytest.raises(PlainError, match="no such object"):
        store.fetch("lock.json", tmp_path / "fetched")
    assert list(tmp_path.iterdir()) == []


# --- preflight ---


def test_preflight_claims_lists_and_takes_the_published_lock(run: Run) -> None:
    preflight.preflight(run)
    store = open_store(run)
    assert files.read_json(run.published_listing) == {
        "paths": {"owner.json": {"key": f"demo/{run.name}/owner.json", "bytes": len(preflight.owner(run.name))}}
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
        "lock.json",
        "manifest.json",
        "manifest.parquet",
        "owner.json",
    ]
    assert [item["rows"] for item in objects(receipts / "start.json")] == [None, None, 208, None]
    call("batch", receipts / "0001.json")
    assert [item["path"] for item in objects(receipts / "0001.json")] == [
        f"completions/{chunk}{end}"
        for chunk in ("00050", "00051")
        for end in (".failures.jsonl.zst", ".json", ".jsonl.zst")
    ]
    assert [item["rows"] for item in objects(receipts / "0001.json")] == [1, None, 3, 1, None, 3]
    call("batch", receipts / "0000.json")

    training = run.folder / "training" / "abc"
    (training / "train-00000.parquet").parent.mkdir(parents=True)
    (training / "train-00000.parquet").write_bytes(b"shard")
    shard = {"path": "train-00000.parquet", "bytes": 5, "sha256": digest(b"shard").sha256, "rows": 7}
    files.write_json(training / "training.json", {"files": [shard]})
    call("training", receipts / "training.json", training / "training.json")
    assert [(item["path"], item["rows"]) for item in objects(receipts / "training.json")] == [
        ("training/abc/train-00000.parquet", 7),
        ("training/abc/training.json", None),
    ]

    parts = [receipts / name for name in ("start.json", "0000.json", "0001.json", "training.json")]
    call("index", receipts / "index.json", *parts)
    (index,) = objects(receipts / "index.json")
    assert index["path"] == "index.json"
    store = open_store(run)
    store.fetch("index.json", tmp_path / "index.json")
    listed = files.read_json(tmp_path / "index.json")
    paths = [item["path"] for item in listed["objects"]]
    assert listed["run"] == run.name and paths == sorted(store.listing().keys() - {"index.json"})
    assert len(paths) == 4 + 3 * 52 + 2

    # The same again is nothing new; another list of objects gets a number.
    before = store.listing()
    call("start", receipts / "start.json")
    call("batch", receipts / "0001.json")
    call("index", receipts / "index.json", *reversed(parts))
    assert objects(receipts / "index.json") == [index] and store.listing() == before
    call("index", receipts / "index.json", parts[0])
    assert objects(receipts / "index.json")[0]["path"] == "index.2.json"
    call("index", receipts / "index.json", parts[0], parts[1])
    assert objects(receipts / "index.json")[0]["path"] == "index.3.json"
    call("index", receipts / "index.json", parts[0])
    assert objects(receipts / "index.json")[0]["path"] == "index.2.json"
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


def test_an_index_of_contradicting_receipts_is_refused(store: Store) -> None:
    receipts = []
    for sha256 in ("0" * 64, "1" * 64):
        item = PublishedObject(path="a", key="k", bytes=1, sha256=sha256, crc64nvme="", rows=None)
        receipts.append(Receipt(objects=[item]))
    with pytest.raises(PlainError, match="two receipts name a"):
        publish.publish_index(store, receipts)


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

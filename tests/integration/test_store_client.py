"""The store's client against the real embedded S3 server: what it creates, refuses and fetches."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.integration.real_store import make_run
from workflow_scripts import processes
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId
from workflow_scripts.publishing import embedded
from workflow_scripts.publishing import store as store_module
from workflow_scripts.publishing.digests import digest
from workflow_scripts.publishing.store import Store, Taken, open_store
from workflow_scripts.records import PublishedObject
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MIB = 1 << 20
T = TypeVar("T")


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
    sockets = set()
    for link in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(link.readlink().name)
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
        assert [path for path in run.store.rglob("*") if path.is_socket()] == []
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

"""Publishing to a real S3 server through a network and a store that are ill: in the end everything is right."""

import datetime
import hashlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults import publishing_cycles
from tests.integration.real_store import credentials, make_run, raw_client, running_seaweed, write_chunk, write_start
from tests.standin.s3_proxy import FAULTS, Proxy, Request, running_proxy
from workflow_scripts import files, identity
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import preflight, publish, uploads, verify
from workflow_scripts.publishing.clients import Access
from workflow_scripts.publishing.store import Store, open_store
from workflow_scripts.run import Run
from workflow_scripts.serving.environment import Environment

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MIB = 1 << 20


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory, seaweedfs: Environment) -> Iterator[Access]:
    with running_seaweed(tmp_path_factory.mktemp("weed"), seaweedfs) as access, pytest.MonkeyPatch.context() as patch:
        credentials(patch, access)
        yield access


@pytest.fixture
def proxy(access: Access) -> Iterator[Proxy]:
    with running_proxy(access.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def client(access: Access) -> "S3Client":
    """A look past the proxy."""
    return raw_client(access)


@pytest.fixture
def run(proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """A run that is published through the proxy, and was checked while all was well."""
    name = request.node.name.removeprefix("test_").replace("[", "-").replace(" ", "_").rstrip("]")
    run = make_run(tmp_path / "results", name, "s3", endpoint_url=proxy.url, chunks=6)
    preflight.preflight(run)
    return run


def open_small(run: Run, patience: float = 60.0) -> Store:
    """The run's store in parts of the smallest size, with few tries of botocore's own: ours are seen at work."""
    store = open_store(run, attempts=2, patience=patience)
    assert store.part_bytes == 16 * MIB  # this store checks when it joins parts, so the preflight found
    object.__setattr__(store, "part_bytes", 5 * MIB)
    return store


def large(seed: int) -> bytes:
    return random.Random(seed).randbytes(11 * MIB)


def check(run: Run, client: "S3Client", contents: dict[str, bytes]) -> None:
    """These objects, byte for byte, besides the owner's; no upload left open; and elsewhere nothing touched."""
    top = f"demo/{run.name}/"
    keys = {item["Key"] for item in client.list_objects_v2(Bucket="draftmill", Prefix=top)["Contents"]}
    assert keys == {top + path for path in [*contents, "owner.json"]}
    for path, content in contents.items():
        found = client.get_object(Bucket="draftmill", Key=top + path)
        assert found["Body"].read() == content and found["Metadata"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert client.list_multipart_uploads(Bucket="draftmill", Prefix=top).get("Uploads", []) == []
    assert list(run.uploads.glob("*")) == []
    assert client.get_object(Bucket="draftmill", Key="elsewhere/kept")["Body"].read() == b"kept"


def first(
    count: int, fault: str, which: Callable[[Request], bool] = lambda request: True
) -> Callable[[Request], str | None]:
    """A fault of the first `count` such requests."""
    left = [count]

    def of(request: Request) -> str | None:
        if left[0] and which(request):
            left[0] -= 1
            return fault
        return None

    return of


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "download" not in fault])
def test_three_such_faults_end_well(run: Run, proxy: Proxy, client: "S3Client", tmp_path: Path, fault: str) -> None:
    store = open_small(run)
    contents = {"small": b"small" * 1000, "large": large(1)}
    for path, content in contents.items():
        proxy.fault = first(3, fault)
        (tmp_path / path).write_bytes(content)
        store.create(tmp_path / path, path)
    check(run, client, contents)


@pytest.mark.parametrize("operation", ["uploads", "uploadId"], ids=["begin", "join"])
def test_a_lost_reply_of_a_multipart_upload_leaves_no_upload(
    run: Run, proxy: Proxy, client: "S3Client", operation: str
) -> None:
    proxy.fault = first(1, "lost reply", lambda request: request.method == "POST" and operation in request.path)
    open_small(run).create(large(2), "large")
    check(run, client, {"large": large(2)})


@pytest.mark.parametrize("fault", ["corrupt download", "truncate", "slow", "reset"])
def test_what_is_fetched_through_faults_is_whole(run: Run, proxy: Proxy, tmp_path: Path, fault: str) -> None:
    store = open_small(run)
    made = store.create(large(3), "large")
    proxy.fault = first(3, fault, lambda request: request.method == "GET")
    assert store.fetch("large", tmp_path / "fetched") == made
    assert (tmp_path / "fetched").read_bytes() == large(3)


def test_downloads_that_never_arrive_whole_leave_nothing(run: Run, proxy: Proxy, tmp_path: Path) -> None:
    store = open_small(run, patience=0.0)
    store.create(b"content" * 100, "small")
    proxy.fault = lambda request: "truncate"
    with pytest.raises(PlainError, match="downloads arrived damaged"):
        store.fetch("small", tmp_path / "to" / "fetched")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_part_that_always_fails_leaves_nothing(run: Run, proxy: Proxy, client: "S3Client") -> None:
    store = open_small(run, patience=2.0)
    proxy.fault = lambda request: "internal" if request.is_part and "partNumber=2" in request.path else None
    with pytest.raises(PlainError, match="InternalError"):
        store.create(large(4), "large")
    check(run, client, {})
    proxy.fault = lambda request: None
    store.create(large(4), "large")
    check(run, client, {"large": large(4)})


def test_a_store_that_is_away_is_waited_for(run: Run, proxy: Proxy, client: "S3Client") -> None:
    back = time.monotonic() + 5.0
    proxy.fault = lambda request: "away" if time.monotonic() < back else None
    store = open_small(run)
    contents = {f"part-{number}": large(number) for number in range(2)}
    threads = [threading.Thread(target=store.create, args=(content, path)) for path, content in contents.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() > back
    check(run, client, contents)


def test_a_storm_of_faults_ends_with_every_object_right(run: Run, proxy: Proxy, client: "S3Client") -> None:
    """Every third request is spoilt in one way or another, while a batch is published, fetched, and read again."""
    chance = random.Random(5)
    write_start(run)
    for chunk in run.chunks():
        write_chunk(run, chunk)
    proxy.fault = lambda request: chance.choice(FAULTS) if chance.random() < 0.33 else None
    store = open_small(run)
    made = [*publish.publish_start(run, store), *publish.publish_batch(run, store, "0000")]
    made.append(store.create(large(6), "large"))
    spoilt = len(proxy.requests)
    assert spoilt > 30
    contents = {
        item["path"]: (run.folder / item["path"]).read_bytes()
        for item in made
        if item["path"] not in ("large", "owner.json")
    }
    check(run, client, contents | {"large": large(6)})
    for item in made:
        assert store.fetch(item["path"], run.folder / "again" / item["path"]) == item


def test_uploads_of_dead_jobs_are_aborted_and_no_others(run: Run, client: "S3Client") -> None:
    ours, theirs = f"demo/{run.name}/large", f"demo/{run.name}-other/large"
    store = open_store(run)
    for key in (ours, theirs):  # as a job that was killed leaves them; the second is another run's
        by = store.client if key == ours else client
        by.create_multipart_upload(Bucket="draftmill", Key=key)
    live = client.create_multipart_upload(Bucket="draftmill", Key=ours)["UploadId"]  # another machine's
    assert len(list(run.uploads.iterdir())) == 1
    preflight.preflight(run)
    left = client.list_multipart_uploads(Bucket="draftmill", Prefix=f"demo/{run.name}").get("Uploads", [])
    assert sorted((upload["Key"], upload["UploadId"] == live) for upload in left) == [(theirs, False), (ours, True)]
    assert list(run.uploads.iterdir()) == []


def test_uploads_on_no_file_are_aborted_only_below_the_run_and_when_old(
    run: Run, client: "S3Client", monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"demo/{run.name}/large", f"demo/{run.name}-other/large", "demo/large", "elsewhere/large"]
    for key in keys:
        client.create_multipart_upload(Bucket="draftmill", Key=key)

    def left() -> set[str]:
        return {upload["Key"] for upload in client.list_multipart_uploads(Bucket="draftmill").get("Uploads", [])}

    preflight.preflight(run)
    assert left() >= set(keys)
    monkeypatch.setattr(uploads, "ABANDONED", datetime.timedelta(seconds=-1))
    preflight.preflight(run)
    assert keys[0] not in left() and left() >= set(keys[1:])


def test_a_trial_that_another_machine_makes_now_is_not_aborted(run: Run, client: "S3Client") -> None:
    """Each start tries, on the owner object, whether the store joins parts over an object."""
    key = f"demo/{run.name}/owner.json"
    trial = client.create_multipart_upload(Bucket="draftmill", Key=key)["UploadId"]
    preflight.preflight(run)
    left = client.list_multipart_uploads(Bucket="draftmill", Prefix=key)["Uploads"]
    assert [upload["UploadId"] for upload in left] == [trial]
    assert files.read_json(run.published_listing)["joins_once"] is True


def test_jobs_killed_at_random_points_leave_nothing_wrong(access: Access, tmp_path: Path) -> None:
    """The short set of `python -m tests.faults.publishing_cycles`."""
    for number in range(2):
        publishing_cycles.cycle(access, tmp_path / str(number), random.Random(number))


def test_verify_finds_what_was_done_to_the_bucket(run: Run, client: "S3Client") -> None:
    write_start(run)
    for chunk in run.chunks():
        write_chunk(run, chunk)
    store = open_store(run)
    publish_receipts(run, store)
    count, findings = verify.verify(run, store, deep=True)
    assert (count, findings.lines()) == (5 + 18, [])

    top = f"demo/{run.name}/"
    client.delete_object(Bucket="draftmill", Key=f"{top}completions/00001.json")
    client.put_object(Bucket="draftmill", Key=f"{top}completions/00002.json", Body=b"x", Metadata={"run": run.name})
    client.put_object(Bucket="draftmill", Key=f"{top}completions/00003.json", Body=b"x", Metadata={"run": "theirs"})
    for stray in ("stray", "index.old.json", "completions/"):
        client.put_object(Bucket="draftmill", Key=f"{top}{stray}", Body=b"x" if stray[-1] != "/" else b"")
    _, findings = verify.verify(run, store)
    assert findings.missing == ["completions/00001.json"]
    assert [line.split(" (")[0] for line in findings.changed] == ["completions/00002.json", "completions/00003.json"]
    assert "was" in findings.changed[0] and "it is of run theirs now" in findings.changed[1]
    strays = ["completions/", "index.old.json", "stray"]
    assert sorted(findings.foreign) == [f"{path} (of no run, on no receipt)" for path in strays]
    assert findings.lines()[0] == "missing: completions/00001.json"


def test_verify_finds_an_index_that_was_replaced(run: Run, client: "S3Client") -> None:
    write_start(run)
    for chunk in run.chunks():
        write_chunk(run, chunk)
    store = open_store(run)
    publish_receipts(run, store)
    receipt = run.folder / "published" / identity.publish_hash(run.config) / "index.json"
    files.write_json(receipt, {"objects": [store.create(b'{"objects":[]}', "index.json")]})
    client.put_object(Bucket="draftmill", Key=store.key("index.json"), Body=b"{}")
    for deep in (False, True):
        _, findings = verify.verify(run, store, deep)
        assert [line.split(" (")[0] for line in findings.lines()] == ["changed: index.json"]
    shutil.rmtree(receipt.parent)  # then nothing tells what was published
    with pytest.raises(PlainError, match=r"has no receipts, and .*index\.json at .* is not there, or not the run's"):
        verify.verify(run, store)


def publish_receipts(run: Run, store: Store) -> None:
    """As the jobs do, with receipts where they belong."""
    folder = run.folder / "published" / identity.publish_hash(run.config)
    for name, objects in (
        ("start", publish.publish_start(run, store)),
        ("0000", publish.publish_batch(run, store, "0000")),
    ):
        files.write_json(folder / f"{name}.json", {"objects": objects})

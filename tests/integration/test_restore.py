"""One run on two machines, and what a machine takes from the bucket, by the real embedded S3 server."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.real_store import credentials, make_run, write_chunk, write_manifest, write_start
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import embedded, preflight, publish
from workflow_scripts.publishing.digests import digest
from workflow_scripts.publishing.restore import restore_chunk
from workflow_scripts.publishing.store import open_store
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


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


def test_machines_that_begin_at_once_agree(run: Run, user: None, foreign: "S3Client", tmp_path: Path) -> None:
    endpoint = embedded.ensure_started(run).endpoint_url
    runs = [make_run(tmp_path / str(number), run.name, "s3", endpoint_url=endpoint) for number in range(3)]
    together = threading.Barrier(len(runs))

    def begin(one: Run) -> bool:
        word = one.results.name
        together.wait()
        preflight.preflight(one)
        if not one.lock.exists():
            files.write_json(one.lock, {"revision": word})
            preflight.publish_lock(one)
        write_manifest(one)
        files.write_json(one.manifest_json, {"got": word})
        files.write_bytes(one.dropped, word.encode())
        return publish.settle_mix(one)

    with ThreadPoolExecutor(len(runs)) as pool:
        taken = list(pool.map(begin, runs))
    assert sorted(taken) == [False, True, True]
    assert start_files(runs[0]) == start_files(runs[1]) == start_files(runs[2])
    assert foreign.list_multipart_uploads(Bucket="draftmill", Prefix=f"demo/{run.name}/").get("Uploads", []) == []


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

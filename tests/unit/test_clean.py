"""Only what is published, superseded or long unused goes, and only when told."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from workflow_scripts import files, results_lock
from workflow_scripts.errors import PlainError
from workflow_scripts.files import clean
from workflow_scripts.processes import RUN_PROCESS_VARIABLE
from workflow_scripts.run import Run

CONFIG = {
    "name": "mine",
    "sources": {"a": {"path": "a.jsonl", "shape": "messages"}},
    "model": {"path": "org/model"},
    "chunks": {"count": 2},
    "publish": {"store": "s3", "bucket": "bucket"},
}
CHUNK = ["completions/00001.jsonl.zst", "completions/00001.failures.jsonl.zst", "completions/00001.json"]
WHOLE = ["completions/00000.json", *CHUNK, "index.json"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    return tmp_path / "results"


@dataclass
class Bucket:
    """The store: what it lists, or why it can't be asked."""

    objects: dict[str, int] = field(default_factory=dict)
    trouble: str = ""
    asked: int = 0

    def listing(self) -> dict[str, int]:
        self.asked += 1
        if self.trouble:
            raise PlainError(self.trouble)
        return self.objects


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket()
    monkeypatch.setattr(clean, "open_store", lambda run, attempts: bucket)
    return bucket


def make_run(results: Path, name: str, published: list[str]) -> Run:
    """A run with two finished chunks and their journals; `published` lists the paths in its receipts, 7 bytes each."""
    run = Run(results / name)
    files.write_bytes(run.folder / "run.yaml", yaml.safe_dump(CONFIG).encode())
    for chunk in ("00000", "00001"):
        files.write_bytes(run.journal(chunk), b"{}\n")
        entries = {}
        for kind, path in (("completions", run.completions(chunk)), ("failures", run.failures(chunk))):
            files.write_bytes(path, f"{kind} of {chunk}".encode())
            entries[kind] = {"bytes": path.stat().st_size, "sha256": files.sha256_file(path), "rows": 1}
        files.write_json(run.sidecar(chunk), entries)
    objects = [{"path": path, "bytes": 7} for path in published]
    files.write_json(run.folder / "published" / "x" / "0000.json", {"objects": objects})
    return run


def found(results: Path, *journals_of: Path, ask_store: bool = False) -> set[str]:
    items = clean.find(results, list(journals_of), ask_store)
    return {str(item.path.relative_to(results.parent)) for item in items}


def remove(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_PROCESS_VARIABLE, "")
    monkeypatch.setattr("sys.argv", ["clean", str(results), "--remove"])
    clean.main()
    results_lock._held.popitem()[1].close()  # as the process's end does


def test_journals_go_when_their_chunk_is_published_or_when_asked_by_name(results: Path) -> None:
    run = make_run(results, "mine-1", CHUNK)
    assert found(results) == {"results/mine-1/journal/00001.jsonl"}
    assert found(results, run.folder) == {"results/mine-1/journal/00000.jsonl", "results/mine-1/journal/00001.jsonl"}
    run.sidecar("00000").unlink()
    assert found(results, run.folder) == {"results/mine-1/journal/00001.jsonl"}


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


@pytest.mark.parametrize("harm", [Path.unlink, damage])
@pytest.mark.parametrize("file", [Run.completions, Run.failures])
def test_the_journal_of_a_chunk_whose_files_were_lost_stays(
    results: Path,
    bucket: Bucket,
    capsys: pytest.CaptureFixture[str],
    file: Callable[[Run, str], Path],
    harm: Callable[[Path], None],
) -> None:
    run = make_run(results, "mine-1", CHUNK)
    bucket.objects = dict.fromkeys(CHUNK, 7)
    for chunk in ("00000", "00001"):
        harm(file(run, chunk))
    assert found(results, run.folder, ask_store=True) == {"results/mine-1/journal/00001.jsonl"}  # the store has it
    assert f"{run.journal('00000')} stays, unless it is published: {file(run, '00000')} is " in capsys.readouterr().out
    bucket.objects = {}
    assert found(results, run.folder, ask_store=True) == set()


def test_a_superseded_run_goes_only_when_it_is_published_whole(results: Path) -> None:
    make_run(results, "mine-1", WHOLE)
    make_run(results, "mine-2", WHOLE)
    (results / "mine").symlink_to("mine-2")
    assert "results/mine-1" in found(results) and "results/mine-2" not in found(results)
    make_run(results, "mine-1", WHOLE[1:])
    assert "results/mine-1" not in found(results)


@pytest.mark.parametrize("name", ["completions/r1.json", "journal/r1.jsonl"])
def test_a_superseded_run_stays_for_what_was_asked_again_and_is_not_published(results: Path, name: str) -> None:
    old = make_run(results, "mine-1", WHOLE)
    make_run(results, "mine-2", WHOLE)
    (results / "mine").symlink_to("mine-2")
    files.write_bytes(old.folder / name, b"{}\n")
    assert "results/mine-1" not in found(results)
    make_run(results, "mine-1", [*WHOLE, "completions/r1.json"])
    assert "results/mine-1" in found(results)


def test_what_the_store_does_not_have_any_more_stays(
    results: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_run(results, "mine-1", [*WHOLE, "training/x/training.json"])
    make_run(results, "mine-2", [])
    (results / "mine").symlink_to("mine-2")
    there = dict.fromkeys([*WHOLE, "training/x/training.json"], 7)
    lost = {**there}
    del lost["training/x/training.json"]
    for bucket.objects in (lost, {**there, "training/x/training.json": 6}):
        remove(results, monkeypatch)
        assert "its store lacks 1 of 6 objects (training/x/training.json)" in capsys.readouterr().out
        assert old.journal("00000").exists() and old.sidecar("00001").exists()
    bucket.trouble = "no answer"
    remove(results, monkeypatch)
    says = f"{old.folder}: what was published stays, for its store can't be asked: no answer\n"
    assert says in capsys.readouterr().out and old.folder.exists()
    bucket.trouble, bucket.objects = "", there
    remove(results, monkeypatch)
    assert not old.folder.exists() and list(results.glob(".*removed")) == []


def test_an_embedded_store_that_is_gone_is_not_made_anew(
    results: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(results, "mine-1", CHUNK)
    config = {**CONFIG, "publish": {"store": "embedded", "bucket": "bucket"}}
    files.write_bytes(run.folder / "run.yaml", yaml.safe_dump(config).encode())
    bucket.objects = dict.fromkeys(CHUNK, 7)
    assert found(results, ask_store=True) == set() and bucket.asked == 0
    assert f"can't be asked: {run.store} is gone" in capsys.readouterr().out
    run.store.mkdir()
    assert found(results, ask_store=True) == {"results/mine-1/journal/00001.jsonl"}


def test_the_store_is_asked_for_what_could_go_only(results: Path, bucket: Bucket) -> None:
    make_run(results, "mine-1", ["owner.json", "lock.json"])
    assert found(results, ask_store=True) == set() and bucket.asked == 0
    make_run(results, "mine-2", CHUNK)
    assert found(results) != set() and bucket.asked == 0


def test_a_removal_that_was_cut_short_is_ended_by_the_next(
    results: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(results, "mine-1", WHOLE)
    make_run(results, "mine-2", [])
    (results / "mine").symlink_to("mine-2")
    bucket.objects = dict.fromkeys(WHOLE, 7)
    marker = results.parent / "home" / "envs" / "sglang-cpu-1" / "draftmill.json"
    files.write_json(marker, {})
    os.utime(marker, (0, 0))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: None)  # nothing is removed yet
        remove(results, patch)
    left = {"results/.mine-1.removed", "home/envs/.sglang-cpu-1.removed"}
    assert {path.name for path in results.glob("mine*")} == {"mine", "mine-2"} and not marker.exists()
    assert found(results) == left
    (results / ".mine-1.removed" / "run.yaml").unlink()
    with files.file_lock(results.parent / "home" / "envs" / "sglang-cpu-1.lock"):  # it is being built again
        assert found(results) == {"results/.mine-1.removed"}
    remove(results, monkeypatch)
    assert found(results) == set() and not any((results.parent / path).exists() for path in left)


def test_environments_go_when_nobody_holds_or_used_them(results: Path) -> None:
    results.mkdir()
    marker = results.parent / "home" / "envs" / "sglang-cpu-1" / "draftmill.json"
    files.write_json(marker, {})
    assert found(results) == set()
    long_ago = time.time() - 31 * 86400
    os.utime(marker, (long_ago, long_ago))
    with files.file_lock(marker.parent.with_name("sglang-cpu-1.lock"), shared=True):
        assert found(results) == set()
    assert found(results) == {"home/envs/sglang-cpu-1"}


def test_nothing_is_removed_until_told(
    results: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(results, "mine-1", CHUNK)
    bucket.objects = dict.fromkeys(CHUNK, 7)
    monkeypatch.setattr("sys.argv", ["clean", str(results)])
    clean.main()
    assert "--remove deletes it" in capsys.readouterr().out and run.journal("00001").exists()
    remove(results, monkeypatch)
    assert run.journal("00000").exists() and not run.journal("00001").exists()

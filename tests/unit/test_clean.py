"""Only what is published, superseded or long unused goes, and only when told."""

import os
import time
from pathlib import Path

import pytest
import yaml

from workflow_scripts import files
from workflow_scripts.files import clean
from workflow_scripts.run import Run

CONFIG = {
    "name": "mine",
    "sources": {"a": {"path": "a.jsonl", "shape": "messages"}},
    "model": {"path": "org/model"},
    "chunks": {"count": 2},
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    return tmp_path / "results"


def make_run(results: Path, name: str, published: list[str]) -> Run:
    """A run with two finished chunks and their journals; `published` lists the receipts' paths."""
    run = Run(results / name)
    files.write_bytes(run.folder / "run.yaml", yaml.safe_dump(CONFIG).encode())
    for chunk in ("00000", "00001"):
        files.write_bytes(run.journal(chunk), b"{}\n")
        files.write_json(run.sidecar(chunk), {})
    files.write_json(run.folder / "published" / "x" / "0000.json", {"objects": [{"path": path} for path in published]})
    return run


def found(results: Path, *journals_of: Path) -> set[str]:
    return {str(item.path.relative_to(results.parent)) for item in clean.find(results, list(journals_of))}


def test_journals_go_when_their_chunk_is_published_or_when_asked_by_name(results: Path) -> None:
    run = make_run(results, "mine-1", ["completions/00001.json"])
    assert found(results) == {"results/mine-1/journal/00001.jsonl"}
    assert found(results, run.folder) == {"results/mine-1/journal/00000.jsonl", "results/mine-1/journal/00001.jsonl"}
    run.sidecar("00000").unlink()
    assert found(results, run.folder) == {"results/mine-1/journal/00001.jsonl"}


def test_a_superseded_run_goes_only_when_it_is_published_whole(results: Path) -> None:
    whole = ["completions/00000.json", "completions/00001.json", "index.json"]
    make_run(results, "mine-1", whole)
    make_run(results, "mine-2", whole)
    (results / "mine").symlink_to("mine-2")
    assert "results/mine-1" in found(results) and "results/mine-2" not in found(results)
    make_run(results, "mine-1", whole[1:])
    assert "results/mine-1" not in found(results)


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
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(results, "mine-1", ["completions/00000.json"])
    monkeypatch.setattr("sys.argv", ["clean", str(results)])
    clean.main()
    assert "--remove deletes it" in capsys.readouterr().out and run.journal("00000").exists()
    monkeypatch.setattr("sys.argv", ["clean", str(results), "--remove"])
    clean.main()
    assert not run.journal("00000").exists() and run.journal("00001").exists()

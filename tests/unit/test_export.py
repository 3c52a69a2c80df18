"""Training shards: their sizes, the evaluation set in its own, and what an earlier export left."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run
from workflow_scripts.training import export as training

PROMPTS = 10
APART = {"p1", "p4", "p9"}


def completion(number: int, ids: list[int]) -> dict[str, Any]:
    turn = {"class": "complete", "prompt_token_ids": [1, 2], "response_token_ids": ids}
    return {"prompt_id": f"p{number}", "sample": 0, "source": "a", "turns": [turn]}


def make_run(folder: Path, share: float, ids: list[int] | None = None) -> Run:
    run = Run(folder / "made-0")
    config = {
        "name": "made",
        "sources": {"a": {"path": "a.jsonl"}},
        "model": {"path": "org/model"},
        "chunks": {"count": 2},
        "prompts": {"eval": share},
        "training": {"min_supervised_tokens": 1},
    }
    files.write_json(run.folder / "run.yaml", config)
    for chunk in run.chunks():
        numbers = range(int(chunk), PROMPTS, 2)
        files.write_jsonl_zst(run.completions(chunk), (completion(n, ids or [3] * (1 + n)) for n in numbers))
    ids_of = [f"p{number}" for number in range(PROMPTS)]
    splits = ["eval" if prompt_id in APART else "train" for prompt_id in ids_of]
    pl.DataFrame({"prompt_id": ids_of, "split": splits}).write_parquet(run.manifest)
    return run


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_shards_are_cut_by_tokens_and_the_evaluation_set_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(training, "TOKENS_IN_ROW_GROUP", 10)
    monkeypatch.setattr(training, "TOKENS_IN_SHARD", 25)
    run, folder = make_run(tmp_path, share), tmp_path / "shards"
    for stale in ("train-00009.parquet", "eval-00001.parquet", "eval-00009.parquet"):
        files.write_bytes(folder / stale, b"of a longer export")
    index = training.export(run, folder)
    assert {path.name for path in folder.iterdir()} == {entry["path"] for entry in index["files"]}
    found: dict[str, list[str]] = {"train": [], "eval": []}
    for entry in index["files"]:
        frame = pl.read_parquet(folder / entry["path"])
        assert len(frame) == entry["rows"] and entry["sha256"] == files.sha256_file(folder / entry["path"])
        assert frame["input_ids"].list.len().sum() < 25 + 10 + 12  # and one group and a row at most
        found[entry["path"].split("-")[0]] += frame["prompt_id"].to_list()
    expected = [f"p{number}" for chunk in range(2) for number in range(chunk, PROMPTS, 2)]
    apart = APART if share else set()
    assert found["train"] == [prompt_id for prompt_id in expected if prompt_id not in apart]
    assert found["eval"] == [prompt_id for prompt_id in expected if prompt_id in apart]
    assert len(index["files"]) > 2 and index["rows"] == PROMPTS
    assert index["supervised_tokens"] == 55 and index["tokens"] == 55 + 2 * PROMPTS
    assert training.export(run, folder) == index


def test_without_rows_there_are_no_shards(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0.5)
    for chunk in run.chunks():
        files.write_jsonl_zst(run.completions(chunk), [])
    index = training.export(run, tmp_path)
    assert (index["files"], index["rows"]) == ([], 0)


def test_a_broken_completion_leaves_no_cut_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TOKENS_IN_ROW_GROUP", 1)
    run = make_run(tmp_path, 0.3)
    files.write_jsonl_zst(run.completions("00001"), [completion(1, [3]), completion(3, [-1])])
    with pytest.raises(PlainError, match="its token ids are no tokens"):
        training.export(run, tmp_path / "shards")
    assert list((tmp_path / "shards").iterdir()) == []


def test_each_turn_is_a_row_whose_mask_covers_its_own_response_alone(tmp_path: Path) -> None:
    turns = [
        {"class": "tool_call", "prompt_token_ids": [1, 2], "response_token_ids": [3, 4]},
        {"class": "cut_in_thinking", "prompt_token_ids": [1, 2, 3, 4], "response_token_ids": [9]},
        {"class": "complete", "prompt_token_ids": [1, 2, 3, 4, 5], "response_token_ids": [6, 7]},
    ]
    run = make_run(tmp_path, 0.3)
    several = {"prompt_id": "p1", "sample": 0, "source": "a", "turns": turns}
    for chunk, rows in (("00000", []), ("00001", [several])):
        files.write_jsonl_zst(run.completions(chunk), rows)
    index = training.export(run, tmp_path / "shards")
    assert index["dropped"] == {"class cut_in_thinking": 1}
    frame = pl.read_parquet(tmp_path / "shards" / index["files"][0]["path"])
    assert frame["input_ids"].to_list() == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]
    assert frame["loss_mask"].to_list() == [[0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1]]
    assert frame["turn"].to_list() == [0, 2]
    assert index["files"][0]["path"].startswith("eval")  # all turns of a prompt are on its side

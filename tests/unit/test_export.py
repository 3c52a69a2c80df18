"""Training shards: sizes and formats, the evaluation set in its own, refusals, and what an earlier export left."""

import hashlib
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow.parquet as pq
import pytest

from tests.unit.training_cases import APART, PROMPTS, completion, make_run, turn, write_chunk
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.reporting.table import training_lines
from workflow_scripts.training import shards
from workflow_scripts.training.export import export

FORMATS = ["parquet", "jsonl", "conversations"]


def paths(index: dict[str, Any], ending: str) -> list[str]:
    return [entry["path"] for entry in index["files"] if entry["path"].endswith(ending)]


def lines(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_shards_are_cut_by_tokens_and_the_evaluation_set_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(shards, "TOKENS_IN_GROUP", 10)
    monkeypatch.setattr(shards, "TOKENS_IN_SHARD", 25)
    run, folder = make_run(tmp_path, share, formats=FORMATS), tmp_path / "shards"
    for stale in ("train-00009.parquet", "eval-00001.parquet", "jsonl/train/00009.jsonl"):
        files.write_bytes(folder / stale, b"of a longer export")
    index = export(run, folder)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == {entry["path"] for entry in index["files"]}
    found: dict[str, list[str]] = {"train": [], "eval": []}
    for path in paths(index, ".parquet"):
        frame = pl.read_parquet(folder / path)
        assert frame["input_ids"].list.len().sum() < 25 + 10 + 12  # and one group and a row at most
        found[path.split("-")[0]] += frame["prompt_id"].to_list()
    for entry in index["files"]:
        assert entry["sha256"] == files.sha256_file(folder / entry["path"])
        if entry["path"].endswith(".jsonl"):
            assert len(lines(folder / entry["path"])) == entry["rows"]
    expected = [f"p{number}" for chunk in range(2) for number in range(chunk, PROMPTS, 2)]
    apart = APART if share else set()
    assert found["train"] == [prompt_id for prompt_id in expected if prompt_id not in apart]
    assert found["eval"] == [prompt_id for prompt_id in expected if prompt_id in apart]
    assert len(paths(index, ".parquet")) > 2 and index["rows"] == PROMPTS
    assert index["supervised_tokens"] == 55 and index["tokens"] == 55 + 2 * PROMPTS
    assert export(run, folder) == index


def test_every_format_holds_the_same_rows_with_where_they_are_from(tmp_path: Path) -> None:
    content = {"model": {"path": "m"}}
    run, folder = make_run(tmp_path, 0.3, content, formats=FORMATS), tmp_path / "shards"
    index = export(run, folder)
    assert sorted(entry["path"] for entry in index["files"]) == [
        *(f"conversations/{name}/00000.jsonl" for name in ("eval", "train")),
        "eval-00000.parquet",
        *(f"jsonl/{name}/00000.jsonl" for name in ("eval", "train")),
        "train-00000.parquet",
    ]
    made = hashlib.sha256(orjson.dumps(content)).hexdigest()
    assert (index["fingerprint"], index["on_policy"]) == (made, True)
    for name in ("train", "eval"):
        table = pq.read_table(folder / f"{name}-00000.parquet")
        assert table.schema.metadata == {b"on_policy": b"true", b"fingerprint": made.encode()}
        kinds = [str(table.schema.field(key).type.value_type) for key in ("input_ids", "loss_mask")]
        assert kinds == ["int32", "uint8"]
        rows = lines(folder / "jsonl" / name / "00000.jsonl")
        assert rows == table.to_pylist()
        assert {(row["fingerprint"], row["on_policy"], row["source"], row["class"]) for row in rows} == {
            (made, True, "a", "complete")
        }
        talks = lines(folder / "conversations" / name / "00000.jsonl")
        assert [talk["id"] for talk in talks] == [f"{row['prompt_id']}-0" for row in rows]
        assert talks[0]["conversations"] == [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


def test_a_conversation_ends_before_its_first_turn_that_is_no_row(tmp_path: Path) -> None:
    run, folder = make_run(tmp_path, formats=["conversations"]), tmp_path / "shards"
    good, cut = turn([1], [2]), turn([1], [2], "cut_in_thinking")
    write_chunk(run, "00000", [completion("p0", good, good, cut, good), completion("p2", cut, good)])
    write_chunk(run, "00001", [])
    index = export(run, folder)
    (talk,) = lines(folder / "conversations" / "train" / "00000.jsonl")
    assert (talk["id"], len(talk["conversations"]), talk["tools"]) == ("p0-0", 4, "[]")
    assert index["rows"] == 4  # whose token ids hold the history, whatever it is


def test_without_rows_there_are_no_shards(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0.5, formats=FORMATS)
    for chunk in run.chunks():
        write_chunk(run, chunk, [])
    index = export(run, tmp_path / "shards")
    assert (index["files"], index["rows"], index["windows"][0]["share"]["right"]) == ([], 0, 0.0)
    assert dict(training_lines(index, 0, {}))["training rows"] == "NONE: no turn passes the config's `training`"


BROKEN = {
    "-1": (turn([1], [-1]), "token id -1, and the vocabulary has ids from 0 to 99"),
    "beyond": (turn([100], [1]), "token id 100, and the vocabulary"),
    "no prompt": (turn([], [1]), "a prompt without tokens"),
    "no ones": (turn([1], []), "its mask would have no ones"),
    "length": (turn([1], [1, 2]) | {"usage": {"prompt_tokens": 1, "completion_tokens": 3}}, "its usage says 1 and 3"),
    "no numbers": (turn([1], ["a"]), "its token ids are no integers"),  # type: ignore[list-item]
    "fractions": (turn([1], [2.5]), "its token ids are no integers"),  # type: ignore[list-item]
    "truths": (turn([True], [True, False]), "its token ids are no integers"),
    "far beyond": (turn([1], [2**62]), f"token id {2**62}, and the vocabulary"),
}


@pytest.mark.parametrize("most", [1, 1000])
@pytest.mark.parametrize("case", BROKEN)
def test_what_no_trainer_should_learn_from_is_refused_and_leaves_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, most: int
) -> None:
    monkeypatch.setattr(shards, "TOKENS_IN_GROUP", 1)
    monkeypatch.setattr(shards, "TOKENS_IN_SHARD", most)
    run = make_run(tmp_path, 0.3, formats=FORMATS)
    broken, message = BROKEN[case]
    write_chunk(run, "00001", [completion("p1", turn([1], [3])), completion("p3", broken)])
    with pytest.raises(PlainError, match=f"prompt p3, turn 0: .*{message}.* Move the files of chunk 00001 "):
        export(run, tmp_path / "shards")
    assert [path for path in (tmp_path / "shards").rglob("*") if path.is_file()] == []


def test_completions_that_were_edited_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    files.write_jsonl_zst(run.completions("00001"), [completion("p1", turn([1, 2], [4]))])
    with pytest.raises(PlainError, match=r"00001\.jsonl\.zst is not the file that was finished"):
        export(run, tmp_path / "shards")


def test_two_fingerprints_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, content={"dtype": "bfloat16"})
    write_chunk(run, "00001", [], {"dtype": "float32"})
    with pytest.raises(PlainError, match=r"(?s)chunks 00000 and 00001 .*dtype: 'bfloat16' before, 'float32' now"):
        export(run, tmp_path / "shards")


def test_another_tokenizer_than_the_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    tokenizer = tmp_path / "model" / "tokenizer.json"
    made = {"model": {"files": {"tokenizer.json": [3, hashlib.sha256(b"{}\n").hexdigest()]}}}
    run = make_run(tmp_path, content=made)
    assert export(run, tmp_path / "shards")["rows"] == PROMPTS
    files.write_json(tokenizer, {"other": 1})
    with pytest.raises(PlainError, match="is not the tokenizer that the completions were made with"):
        export(run, tmp_path / "shards")


def test_a_sources_rows_are_capped_in_the_manifests_order(tmp_path: Path) -> None:
    run, folder = make_run(tmp_path, source_rows={"b": 2}), tmp_path / "shards"
    write_chunk(run, "00000", [completion(f"b{n}", turn([1], [2, 3]), source="b") for n in range(5)])
    index = export(run, folder)
    assert index["dropped"] == {"over source_rows": 3}
    assert index["supervised_tokens_dropped"] == {"over source_rows": 6}
    told = training_lines(index, index["rows"], index["dropped"])
    assert ("turns, dropped", "3 over source_rows") in told and ("supervised, dropped", "6 over source_rows") in told
    assert pl.read_parquet(folder / "train-00000.parquet")["prompt_id"].to_list()[:3] == ["b0", "b1", "p1"]


def test_each_turn_is_a_row_whose_mask_covers_its_own_response_alone(tmp_path: Path) -> None:
    turns = [
        turn([1, 2], [3, 4], "tool_call"),
        turn([1, 2, 3, 4], [9], "cut_in_thinking"),
        turn([1, 2, 3, 4, 5], [6, 7]),
    ]
    run = make_run(tmp_path, 0.3)
    for chunk, rows in (("00000", []), ("00001", [completion("p1", *turns)])):
        write_chunk(run, chunk, rows)
    index = export(run, tmp_path / "shards")
    assert index["dropped"] == {"class cut_in_thinking": 1}
    frame = pl.read_parquet(tmp_path / "shards" / index["files"][0]["path"])
    assert frame["input_ids"].to_list() == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]
    assert frame["loss_mask"].to_list() == [[0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1]]
    assert frame["turn"].to_list() == [0, 2]
    assert index["files"][0]["path"].startswith("eval")  # all turns of a prompt are on its side

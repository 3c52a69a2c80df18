"""The draft vocabulary: counts, mapping, coverage, and the files that trainers read."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.training_cases import VOCABULARY, completion, make_run, turn, write_chunk
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run
from workflow_scripts.training import vocabulary
from workflow_scripts.training.export import export


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_the_mapping_is_that_of_the_most_frequent_ids(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(counts)))
    d2t, t2d = vocabulary.mapping(np.array(counts, dtype=np.int64), size)
    wanted = sorted(sorted(range(len(counts)), key=lambda token: (-counts[token], token))[:size])
    assert (d2t + np.arange(size)).tolist() == wanted == np.flatnonzero(t2d).tolist()
    share = sum(counts[token] for token in wanted) / (sum(counts) or 1)
    assert vocabulary.coverage(np.array(counts), size) == round(share, 6)


def test_only_supervised_tokens_of_the_training_split_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "IDS_AT_ONCE", 3)
    run, folder = make_run(tmp_path, 0.3, draft_vocabulary=2, max_tokens=5), tmp_path / "shards"
    write_chunk(run, "00000", [completion("p0", turn([9, 9], [5, 5, 7, 8])), completion("p4", turn([9], [6, 6]))])
    write_chunk(run, "00001", [completion("p3", turn([9], [5, 7]))])
    index = export(run, folder)
    counts = np.load(folder / "token_freq.npy")
    assert counts.dtype == np.int64 and len(counts) == VOCABULARY
    assert {token: count for token, count in enumerate(counts) if count} == Counter([5, 5, 7, 5, 7])
    d2t, t2d = np.load(folder / "d2t-2.npy"), np.load(folder / "t2d-2.npy")
    assert (d2t.tolist(), d2t.dtype, t2d.dtype, np.flatnonzero(t2d).tolist()) == ([5, 6], np.int64, np.bool_, [5, 7])
    told = index["draft_vocabulary"]
    assert told == {"size": 2, "target_vocabulary": VOCABULARY, "different_tokens": 2, "coverage": {"2": 1.0}}
    assert {"d2t-2.npy", "t2d-2.npy", "token_freq.npy"} <= {entry["path"] for entry in index["files"]}


def test_a_draft_vocabulary_larger_than_the_targets_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, draft_vocabulary=VOCABULARY + 1)
    with pytest.raises(PlainError, match="101 is more than the 100 ids of the target's own"):
        export(run, tmp_path / "shards")
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(PlainError, match=r"how many token ids .* has is not known here"):
        export(run, tmp_path / "shards")


@pytest.mark.parametrize("servers", [{"engine": "sglang"}, {"engine": "sglang-cpu"}, {"python": "/none/bin/python"}])
def test_no_environment_is_built_for_the_files_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], servers: dict[str, str]
) -> None:
    """As where a published run was fetched to a machine without a GPU, and `training` changed."""
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    run, folder = make_run(tmp_path, draft_vocabulary=2), tmp_path / "shards"
    config = files.read_json(run.folder / "run.yaml")
    files.write_json(run.folder / "run.yaml", config | {"servers": servers})
    names = {entry["path"] for entry in export(Run(run.folder), folder)["files"]}
    assert names == {"train-00000.parquet", "d2t-2.npy", "t2d-2.npy", "token_freq.npy"}
    assert f"torch_files.py {folder} 2` with any torch writes the .pt files" in capsys.readouterr().out
    assert not (tmp_path / "home" / "envs").exists()

"""Every dataset of the catalogue, in its own shape and with its quirks: the exact prompts of own rows.

tests/data/datasets/NAME.jsonl (or .json, where the set is a JSON array) holds the rows, NAME.expected.jsonl what each
row is to become, line by line: {row, messages, tools, first_id}, or {row, reject}.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflow_scripts import config, files
from workflow_scripts.sources.normalize import SourceFile, build_shard

FOLDER = Path(__file__).parents[1] / "data" / "datasets"
SHAPES: dict[str, config.Shape] = {
    "agentic_coding_trajectories": "messages_json_string",
    "agentinstruct": "sharegpt",
    "code_alpaca": "alpaca",
    "code_feedback": "messages",
    "codefeedback_filtered": "prompt_response",
    "coderforge": "messages_json_string",
    "evol_codealpaca": "prompt_response",
    "glaive_sharegpt": "sharegpt",
    "glaive_v2": "transcript_string",
    "hermes_func_calling": "sharegpt",
    "hermes_func_calling_singleturn": "sharegpt",
    "hermes_glaive_func_calling": "sharegpt",
    "hermes_json_mode": "sharegpt",
    "infinity_instruct": "sharegpt",
    "lima": "alternating_strings",
    "lmsys_chat_1m": "messages",
    "magicoder_evol": "prompt_response",
    "magicoder_oss": "prompt_response",
    "metamathqa": "prompt_response",
    "nemotron_ptv2": "messages",
    "oasst1": "message_tree",
    "open_perfectblend": "sharegpt",
    "openorca": "prompt_response_system",
    "sharegpt": "sharegpt",
    "smoltalk2_sft": "messages",
    "toolace": "sharegpt",
    "tulu3_sft": "messages",
    "ultrachat_200k": "messages",
    "ultrachat_raw": "alternating_strings",
    "webinstructsub": "prompt_response",
    "wildchat_1m": "messages",
    "xlam": "tools_query_answers",
}
PARQUET = (
    "agentic_coding_trajectories",
    "agentinstruct",
    "coderforge",
    "infinity_instruct",
    "lmsys_chat_1m",
    "nemotron_ptv2",
    "oasst1",
    "open_perfectblend",
    "openorca",
    "smoltalk2_sft",
    "tulu3_sft",
    "ultrachat_200k",
    "webinstructsub",
    "wildchat_1m",
)


def fixture(name: str) -> Path:
    return next(path for path in (FOLDER / f"{name}.jsonl", FOLDER / f"{name}.json") if path.exists())


def rows_of(path: Path) -> list[Any]:
    if path.suffix == ".json":
        rows: list[Any] = json.loads(path.read_text())
        return rows
    return [json.loads(line) for line in path.read_text().splitlines()]


def made(file: Path, shape: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The stats of a file's shard, and what became of each row."""
    source = config.Source.model_validate({"path": str(file), "shape": shape, "max_rejects": 1.0})
    stats = build_shard("demo", source, [SourceFile.of(file)], folder)
    found = [
        {
            "row": row["source_row"],
            "messages": json.loads(row["messages"]),
            "tools": None if row["tools"] is None else json.loads(row["tools"]),
            "first_id": row["first_id"],
        }
        for row in pq.read_table(folder / "prompts.parquet").to_pylist()
    ]
    rejects = files.read_jsonl_zst(folder / "rejects.jsonl.zst")
    found += [{"row": reject["row"], "reject": reject["reason"]} for reject in rejects]
    return stats, sorted(found, key=lambda one: one["row"])


def test_every_fixture_is_tested() -> None:
    assert sorted(SHAPES) == sorted({path.name.split(".")[0] for path in FOLDER.iterdir()})


@pytest.mark.parametrize("name", SHAPES)
def test_the_exact_prompts(name: str, tmp_path: Path) -> None:
    expected = rows_of(FOLDER / f"{name}.expected.jsonl")
    assert [one["row"] for one in expected] == list(range(len(rows_of(fixture(name)))))
    for shape in (SHAPES[name], "auto"):
        stats, found = made(fixture(name), shape, tmp_path / shape)
        assert stats["shape"] == SHAPES[name]
        assert found == expected


@pytest.mark.parametrize("name", PARQUET)
def test_the_same_prompts_from_parquet(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.parquet"
    rows = rows_of(fixture(name))
    if name == "wildchat_1m":
        for row in rows:
            row["timestamp"] = datetime.fromisoformat(row["timestamp"])
    pq.write_table(pa.Table.from_pylist(rows), file)
    stats, found = made(file, "auto", tmp_path / "shard")
    assert stats["shape"] == SHAPES[name]
    assert found == rows_of(FOLDER / f"{name}.expected.jsonl")

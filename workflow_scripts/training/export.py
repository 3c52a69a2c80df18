"""Completions become training shards: token for token what the server saw and said."""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts import files
from workflow_scripts.config import Training
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.records import Completion
from workflow_scripts.run import Run

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("prompt_id", pa.string()),
        ("sample", pa.int32()),
        ("turn", pa.int32()),
        ("source", pa.string()),
        ("class", pa.string()),
    ]
)
TOKENS_IN_ROW_GROUP = 2_000_000
TOKENS_IN_SHARD = 50_000_000


def training_rows(completion: Completion, training: Training, dropped: Counter[str]) -> Iterator[dict[str, Any]]:
    """One row per assistant turn that is kept; every other is counted in `dropped` by its reason.

    `input_ids` are the server's prompt ids, then its response ids, never tokenized again; `loss_mask` is 1 exactly
    on the response's. Rows over `max_tokens` are cut at the right.
    """
    for number, turn in enumerate(completion["turns"]):
        where = f"prompt {completion['prompt_id']}, sample {completion['sample']}, turn {number}"
        if turn["class"] not in training.keep:
            dropped[f"class {turn['class']}"] += 1
            continue
        if not turn["prompt_token_ids"] or min(turn["prompt_token_ids"] + turn["response_token_ids"]) < 0:
            raise PlainError(
                f"{where}: its token ids are no tokens. Move the chunk's files and its journal away to make it again"
            )
        prompt = np.array(turn["prompt_token_ids"], dtype=np.int32)
        response = np.array(turn["response_token_ids"], dtype=np.int32)
        ids = np.concatenate([prompt, response])[: training.max_tokens]
        mask = np.zeros(len(ids), dtype=np.uint8)
        mask[len(prompt) :] = 1
        if int(mask.sum()) < training.min_supervised_tokens:
            cut = len(response) >= training.min_supervised_tokens
            dropped["cut below min_supervised_tokens" if cut else "below min_supervised_tokens"] += 1
            continue
        yield {
            "input_ids": ids,
            "loss_mask": mask,
            "prompt_id": completion["prompt_id"],
            "sample": completion["sample"],
            "turn": number,
            "source": completion["source"],
            "class": turn["class"],
        }


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    def lists(name: str, kind: pa.DataType) -> pa.Array:
        values = [row[name] for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(value) for value in values])]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(values), type=kind))

    columns = [lists("input_ids", pa.int32()), lists("loss_mask", pa.uint8())]
    columns += [pa.array([row[field.name] for row in rows], type=field.type) for field in list(SCHEMA)[2:]]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _row_groups(run: Run, dropped: Counter[str]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    held = 0
    for chunk in run.chunks():
        for completion in files.read_jsonl_zst(run.completions(chunk)):
            for row in training_rows(completion, run.config.training, dropped):
                rows.append(row)
                held += len(row["input_ids"])
                if held >= TOKENS_IN_ROW_GROUP:
                    yield rows
                    rows, held = [], 0
    if rows:
        yield rows


def export(run: Run, folder: Path) -> dict[str, Any]:
    """Write train-00000.parquet and on into `folder`, at most about 50M tokens each; equal input, equal bytes.

    Returns the index: files (path in the folder, bytes, sha256, rows), rows, tokens, supervised_tokens, dropped.
    """
    dropped = Counter[str]()
    groups = _row_groups(run, dropped)
    entries: list[dict[str, Any]] = []
    tokens = supervised = 0
    group = next(groups, None)
    while group is not None:
        path = folder / f"train-{len(entries):05d}.parquet"
        in_shard = rows = 0
        with files.atomic_path(path) as tmp, pq.ParquetWriter(tmp, SCHEMA, compression="zstd") as writer:
            while group is not None and in_shard < TOKENS_IN_SHARD:
                writer.write_table(_table(group))
                rows += len(group)
                in_shard += sum(len(row["input_ids"]) for row in group)
                supervised += sum(int(row["loss_mask"].sum()) for row in group)
                group = next(groups, None)
        tokens += in_shard
        entries.append(
            {"path": path.name, "bytes": path.stat().st_size, "sha256": files.sha256_file(path), "rows": rows}
        )
    for stale in set(folder.glob("train-*.parquet")) - {folder / entry["path"] for entry in entries}:
        stale.unlink()  # of a longer export into this folder; its index is about to be replaced
    return {
        "files": entries,
        "rows": sum(entry["rows"] for entry in entries),
        "tokens": tokens,
        "supervised_tokens": supervised,
        "dropped": dict(sorted(dropped.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a run's completions as token-exact training shards.")
    parser.add_argument("index", type=Path, help="results/RUN/training/HASH/training.json, written after the shards")
    index = parser.parse_args().index
    run = Run.holding(index)
    with timed(run.folder, "training"):
        result = export(run, index.parent)
        files.write_json(index, result)
        say(f"{result['rows']} training rows, {result['supervised_tokens']} supervised tokens")


if __name__ == "__main__":
    run_job(main)

"""Completions become training shards: token for token what the server saw and said."""

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts import files
from workflow_scripts.config import Training
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.prompts import manifest_file
from workflow_scripts.publishing.restore import restore_training
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


class _Shards:
    """Shards NAME-00000.parquet and on, at most about 50M tokens each."""

    def __init__(self, folder: Path, name: str) -> None:
        self.entries: list[dict[str, Any]] = []
        self.tokens = self.supervised = 0
        self._folder, self._name = folder, name
        self._group: list[dict[str, Any]] = []
        self._group_tokens = 0
        self._open = ExitStack()  # the shard being written
        self._writer: pq.ParquetWriter | None = None
        self._shard_rows = self._shard_tokens = 0

    def add(self, row: dict[str, Any]) -> None:
        self._group.append(row)
        self._group_tokens += len(row["input_ids"])
        self.supervised += int(row["loss_mask"].sum())
        if self._group_tokens >= TOKENS_IN_ROW_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        if self._writer is None:
            tmp = self._open.enter_context(files.atomic_path(self._path))
            self._writer = self._open.enter_context(pq.ParquetWriter(tmp, SCHEMA, compression="zstd"))
        self._writer.write_table(_table(self._group))
        self.tokens += self._group_tokens
        self._shard_rows += len(self._group)
        self._shard_tokens += self._group_tokens
        self._group, self._group_tokens = [], 0
        if self._shard_tokens >= TOKENS_IN_SHARD:
            self._finish_shard()

    def _finish_shard(self) -> None:
        self._open.close()
        path, self._writer = self._path, None
        entry = {"path": path.name, "bytes": path.stat().st_size, "sha256": files.sha256_file(path)}
        self.entries.append(entry | {"rows": self._shard_rows})
        self._shard_rows = self._shard_tokens = 0

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}-{len(self.entries):05d}.parquet"

    def __enter__(self) -> "_Shards":
        return self

    def __exit__(self, *exc: Any) -> None:
        """Finish the last shard; after an error, leave none that is cut."""
        if exc[0] is not None:
            self._open.__exit__(*exc)
            return
        if self._group:
            self._write_group()
        if self._writer is not None:
            self._finish_shard()


def _set_apart(run: Run) -> set[str]:
    """The prompts of the evaluation set, by id."""
    if not run.config.prompts.eval:
        return set()
    manifest = manifest_file.read(run, ["prompt_id", "split"])
    return set(manifest.filter(pl.col("split") == "eval")["prompt_id"])


def export(run: Run, folder: Path) -> dict[str, Any]:
    """Write train-00000.parquet and on into `folder`, and with `prompts.eval` eval-00000.parquet and on for those rows.

    Equal input, equal bytes. Returns the index: files (path in the folder, bytes, sha256, rows), rows, tokens,
    supervised_tokens, dropped.
    """
    dropped = Counter[str]()
    apart = _set_apart(run)
    with _Shards(folder, "train") as train, _Shards(folder, "eval") as evaluation:
        for chunk in [*run.chunks(), *run.redrives()]:
            for completion in files.read_jsonl_zst(run.completions(chunk)):
                shards = evaluation if completion["prompt_id"] in apart else train
                for row in training_rows(completion, run.config.training, dropped):
                    shards.add(row)
    entries = [*train.entries, *evaluation.entries]
    there = {*folder.glob("train-*.parquet"), *folder.glob("eval-*.parquet")}
    for stale in there - {folder / entry["path"] for entry in entries}:
        stale.unlink()  # of a longer export into this folder; its index is about to be replaced
    return {
        "files": entries,
        "rows": sum(entry["rows"] for entry in entries),
        "tokens": train.tokens + evaluation.tokens,
        "supervised_tokens": train.supervised + evaluation.supervised,
        "dropped": dict(sorted(dropped.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a run's completions as token-exact training shards.")
    parser.add_argument("index", type=Path, help="results/RUN/training/HASH/training.json, written after the shards")
    index = parser.parse_args().index
    run = Run.holding(index)
    with timed(run.folder, "training"):
        if restore_training(run, index):
            say("training shards: fetched from the bucket and verified")
            return
        result = export(run, index.parent)
        files.write_json(index, result)
        say(f"{result['rows']} training rows, {result['supervised_tokens']} supervised tokens")


if __name__ == "__main__":
    run_job(main)

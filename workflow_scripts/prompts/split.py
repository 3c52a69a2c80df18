"""The manifest becomes chunks: a file of prompts each, and one flag that names them all."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import orjson
import polars as pl

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.prompts import manifest_file
from workflow_scripts.prompts.candidates import source_shard
from workflow_scripts.publishing.restore import nothing_left
from workflow_scripts.records import Message, Prompt
from workflow_scripts.run import Run
from workflow_scripts.sources.prompt_ids import Turns, prompt_side

PROMPTS_IN_MEMORY = 200_000


def write_chunks(run: Run, chunks: list[str]) -> None:
    """Write the prompts files of `chunks`, whole or not at all, the same bytes every time.

    Shards are read once for each 200,000 prompts, so that memory does not grow with the run.
    """
    for batch, found in _batches(run, chunks):
        for chunk in batch:
            rows = (
                () if found is None else _prompts(found.filter(pl.col("chunk") == int(chunk)), run.config.prompts.turns)
            )
            files.write_jsonl_zst(run.prompts(chunk), rows)


def recorded(run: Run) -> Iterator[Prompt]:
    """All prompts of the run in manifest order, each with its whole recorded conversation; memory as above."""
    for _, found in _batches(run, run.chunks()):
        if found is not None:
            yield from _prompts(found, "all")


def _batches(run: Run, chunks: list[str]) -> Iterator[tuple[list[str], pl.DataFrame | None]]:
    """Chunks that are made at once, and their prompts' rows of the shards in manifest order, if there are any."""
    manifest = manifest_file.read(run, ["prompt_id", "first_id", "source", "row", "chunk", "position"])
    sizes = dict(manifest.group_by("chunk").len().iter_rows())
    batch: list[str] = []
    held = 0
    for chunk in chunks:
        batch.append(chunk)
        held += sizes.get(int(chunk), 0)
        if held >= PROMPTS_IN_MEMORY:
            yield batch, _joined(run, manifest, batch)
            batch, held = [], 0
    if batch:
        yield batch, _joined(run, manifest, batch)


def _joined(run: Run, manifest: pl.DataFrame, chunks: list[str]) -> pl.DataFrame | None:
    wanted = manifest.filter(pl.col("chunk").is_in([int(chunk) for chunk in chunks]))
    parts = []
    for (source,), rows in wanted.group_by(["source"], maintain_order=True):
        folder = source_shard(run, str(source))
        shard = pl.scan_parquet(folder / "prompts.parquet", glob=False).drop("dedupe_key")
        part = rows.lazy().join(shard, on="row", how="left", suffix="_there").collect()
        if not part["first_id"].equals(part["first_id_there"]):
            raise PlainError(
                f"{folder} holds other prompts than the manifest was drawn from (another version of Draftmill made it, "
                f"or another program). Finished chunks are not touched; to draw anew, move {run.folder} away"
            )
        parts.append(part)
    return pl.concat(parts).sort("chunk", "position") if parts else None


def _prompts(rows: pl.DataFrame, turns: Turns) -> Iterator[Prompt]:
    """Prompts of a chunk in manifest order.

    Under `turns: first` a prompt ends before the first assistant turn; under `all` it is the whole recorded
    conversation, by which the calls of new turns find their results.
    """
    for row in rows.iter_rows(named=True):
        messages: list[Message] = orjson.loads(row["messages"])
        yield {
            "prompt_id": row["prompt_id"],
            "first_id": row["first_id"],
            "source": row["source"],
            "source_id": row["source_id"],
            "source_row": row["source_row"],
            "messages": prompt_side(messages) if turns == "first" else messages,
            "tools": None if row["tools"] is None else orjson.loads(row["tools"]),
            "meta": orjson.loads(row["meta"]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Split the manifest into chunks of prompts.")
    parser.add_argument("flag", type=Path, help="results/RUN/prompts/split.json, written last: each chunk's sha256")
    flag = parser.parse_args().flag
    run = Run.holding(flag)
    if nothing_left(run):  # chunks make what they need themselves
        say("chunks of prompts: not needed, every chunk is in the bucket")
        files.write_json(flag, {})
        return
    with timed(run.folder, "prompts"):
        write_chunks(run, run.chunks())
        files.write_json(flag, {chunk: files.sha256_file(run.prompts(chunk)) for chunk in run.chunks()})
        say(f"{len(run.chunks())} chunks of prompts")


if __name__ == "__main__":
    run_job(main)

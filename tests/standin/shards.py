"""A run whose sources are read already: its folder up to the point where the manifest is drawn."""

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.records import Message
from workflow_scripts.run import Run
from workflow_scripts.sources import NORMALIZER_VERSION
from workflow_scripts.sources.conversion import ShardRow, batch_of
from workflow_scripts.sources.prompt_ids import Tools, identify
from workflow_scripts.sources.readers import BATCH_ROWS
from workflow_scripts.sources.shard import PromptsWriter


def shard_row(number: int, messages: list[Message], tools: Tools = None) -> ShardRow:
    """A prompt as the normalizer writes it."""
    ids = identify(messages, tools)
    return ShardRow(
        first_id=ids.first_id,
        all_id=ids.all_id,
        source_id=f"made:{number}",
        source_row=number,
        messages=orjson.dumps(messages).decode(),
        tools=None if tools is None else orjson.dumps(tools).decode(),
        meta="{}",
        dedupe_key=ids.dedupe_key,
    )


def write_shard(folder: Path, rows: Iterable[ShardRow]) -> dict[str, Any]:
    """A whole shard; its stats."""
    files.make_folder(folder)
    prompts = folder / "prompts.parquet"
    writer = PromptsWriter(prompts)
    waiting = iter(rows)
    while batch := list(islice(waiting, BATCH_ROWS)):
        writer.add(batch_of(batch))
    writer.close()
    files.write_jsonl_zst(folder / "rejects.jsonl.zst", [])
    stats = {
        "normalizer": NORMALIZER_VERSION,
        "rows": writer.rows,
        "prompts": writer.rows,
        "rejects": {},
        "prompts_bytes": prompts.stat().st_size,
        "prompts_sha256": files.sha256_file(prompts),
    }
    files.write_json(folder / "stats.json", stats)
    return stats


def read_already(results: Path, config: Mapping[str, Any], sources: Mapping[str, Iterable[ShardRow] | None]) -> Run:
    """A run of these sources; None for a shard that is there. What `config` says of `sources` is laid over."""
    said = config.get("sources", {})
    values = {"name": "made", "model": {"path": "org/model"}} | dict(config)
    values["sources"] = {name: {"path": f"{name}.jsonl", "shape": "messages"} | said.get(name, {}) for name in sources}
    run = Run(results / f"{values['name']}-0")
    files.write_json(run.folder / "run.yaml", values)  # JSON is YAML
    locked = {}
    for name, rows in sources.items():
        shard = f"sources/{name}-0"
        stats = files.read_json(results / shard / "stats.json") if rows is None else write_shard(results / shard, rows)
        locked[name] = {"shard": shard, "files": []}
        found = {key: stats[key] for key in ("rows", "prompts", "rejects")}
        files.write_json(run.source(name), {"source": name, "shard": shard, **found})
    files.write_json(run.lock, {"sources": locked})
    return run

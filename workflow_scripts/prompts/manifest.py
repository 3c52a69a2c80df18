"""Shards become the prompt manifest: the mix drawn, duplicates dropped, every prompt given its chunk and place."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.prompts.candidates import Shards
from workflow_scripts.prompts.mix import Drawn, draw, quotas, spread
from workflow_scripts.run import Run


def build(run: Run) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The manifest (prompt_id, first_id, source, row, chunk, position, tokens) and its account of the mix.

    `source` names the shard that the prompt is in, a stand-in's too, and `row` its row there; `tokens` is null where no
    tokenizer counts them. Raises PlainError with the account as a table if the sources hold fewer prompts than asked.
    """
    config = run.config
    shards = Shards(run)
    own = [shards.own(name) for name in config.sources]
    substitutes = [shards.substitutes(name) for name in config.sources]
    fill = [shards.fill(name, reading) for name, reading in config.prompts.fill.items()]
    takes = [source.take for source in config.sources.values()]
    drawn, filled = draw(own, substitutes, takes, config.prompts.total, fill)

    rows: dict[str, list[int]] = {}
    for result in [*drawn, *filled]:
        for ref in result.refs:
            rows.setdefault(ref.shard, []).append(ref.row)
    empty = pl.DataFrame(schema={"first_id": pl.String, "row": pl.Int64, "order": pl.Binary, "source": pl.String})
    taken = pl.concat(
        [empty]
        + [
            shards.frames[name][found].select("first_id", "row", "order", source=pl.lit(name))
            for name, found in rows.items()
        ]
    ).sort("order")
    sizes = spread(len(taken), config.chunk_count())
    manifest = taken.select(
        prompt_id=pl.col("first_id"),
        first_id=pl.col("first_id"),
        source=pl.col("source"),
        row=pl.col("row").cast(pl.Int64),
        chunk=pl.Series([chunk for chunk, size in enumerate(sizes) for _ in range(size)], dtype=pl.Int32),
        position=pl.Series([place for size in sizes for place in range(size)], dtype=pl.Int32),
        tokens=pl.lit(None, dtype=pl.Int32),
    )
    account = _account(run, shards, drawn, filled)
    if account["short"] and not config.prompts.allow_short:
        raise PlainError(
            f"the sources hold {account['taken']} of the {account['asked']} prompts asked:\n{table(account)}\n"
            f"Ask for less (take, prompts.total), add sources, or set prompts.allow_short: true"
        )
    return manifest, account


def _account(run: Run, shards: Shards, drawn: list[Drawn], filled: list[Drawn]) -> dict[str, Any]:
    """manifest.json: for each source what was asked, found and taken, what stood in for it, and what filled up."""
    config = run.config
    takes = [source.take for source in config.sources.values()]
    wanted = quotas(takes, config.prompts.total)
    sources = []
    for name, quota, result in zip(config.sources, wanted, drawn, strict=True):
        found = files.read_json(run.source(name))
        by_shard = Counter(ref.shard for ref in result.refs)
        sources.append(
            {
                "source": name,
                "asked": config.sources[name].take,
                "quota": quota,
                "unavailable": found.get("unavailable"),
                "rows": found.get("rows", 0),
                "rejected": found.get("rejects", {}),
                "available": found.get("prompts", 0),
                "duplicates": result.duplicates,
                "own": by_shard.pop(name, 0),
                "substituted": dict(by_shard),
                "taken": len(result.refs),
            }
        )
    filling = {name: len(result.refs) for name, result in zip(config.prompts.fill, filled, strict=True) if result.refs}
    taken = sum(len(result.refs) for result in [*drawn, *filled])
    # `all` asks for what there is, so only numeric quotas can be missed; a total can be missed by any mix.
    asked = config.prompts.total
    if asked is None:
        asked = sum(len(r.refs) if quota == "all" else quota for quota, r in zip(wanted, drawn, strict=True))
    return {
        "run": run.name,
        "asked": asked,
        "taken": taken,
        "short": taken < asked,
        "sources": sources,
        "filled": filling,
        "stand_ins": shards.stand_ins,
    }


def table(account: dict[str, Any]) -> str:
    """The account as a plain table, a line a source and a line for each that stood in."""
    lines = [f"{'source':<24} {'asked':>9} {'usable':>9} {'repeated':>9} {'taken':>9}"]
    for row in account["sources"]:
        lines.append(
            f"{row['source']:<24} {row['asked']:>9} {row['available']:>9} {row['duplicates']:>9} {row['taken']:>9}"
        )
        if row["unavailable"]:
            lines.append(f"  can't be read: {row['unavailable']['reason']}")
        lines += [f"  {name + ' stands in':<52} {count:>9}" for name, count in row["substituted"].items()]
    lines += [f"{name + ' fills up':<54} {count:>9}" for name, count in account["filled"].items()]
    return "\n".join([*lines, f"{'all':<24} {account['asked']:>9} {'':>9} {'':>9} {account['taken']:>9}"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the mix from the sources' shards into the prompt manifest.")
    parser.add_argument("manifest", type=Path, help="results/RUN/manifest.parquet; manifest.json goes beside it")
    run = Run.holding(parser.parse_args().manifest)
    with timed(run.folder, "prompts"):
        manifest, account = build(run)
        files.write_json(run.manifest_json, account)
        with files.atomic_path(run.manifest) as tmp:
            manifest.write_parquet(tmp, compression="zstd", statistics=True)
        say(table(account))


if __name__ == "__main__":
    run_job(main)

"""Shards become the prompt manifest: the mix drawn, duplicates dropped, every prompt given its chunk and place."""

import argparse
from pathlib import Path
from typing import Any

import polars as pl

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.prompts.mix import Drawn, draw, order_key, quotas, spread
from workflow_scripts.run import Run
from workflow_scripts.sources.normalize import ensure_shard


def build(run: Run) -> tuple[pl.DataFrame, dict[str, Any]]:
    """The manifest (prompt_id, first_id, source, row, chunk, position, tokens) and its account of the mix.

    `row` is the prompt's row in its source's shard; `tokens` is null where no tokenizer counts them. Raises
    PlainError with the account as a table if the sources hold fewer prompts than asked.
    """
    config = run.config
    names = list(config.sources)
    candidates = [_candidates(ensure_shard(run, name), config.prompts.seed) for name in names]
    columns = ["first_id", "dedupe_key"] if config.prompts.dedupe.exact else ["first_id"]
    takes = [source.take for source in config.sources.values()]
    drawn = draw([frame.select(columns).iter_rows() for frame in candidates], takes, config.prompts.total)

    taken = pl.concat(
        [
            frame[result.rows].select("first_id", "row", "order", source=pl.lit(name))
            for name, frame, result in zip(names, candidates, drawn, strict=True)
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
    account = _account(run, names, candidates, drawn)
    if account["short"] and not config.prompts.allow_short:
        raise PlainError(
            f"the sources hold {account['taken']} of the {account['asked']} prompts asked:\n{table(account)}\n"
            f"Ask for less (take, prompts.total), add sources, or set prompts.allow_short: true"
        )
    return manifest, account


def _candidates(shard: Path, seed: int) -> pl.DataFrame:
    """A shard's prompts in the seeded order they are drawn in: row, first_id, dedupe_key, order."""
    frame = pl.read_parquet(shard / "prompts.parquet", columns=["row", "first_id", "dedupe_key"], glob=False)
    order = pl.Series("order", [order_key(seed, first_id) for first_id in frame["first_id"]], dtype=pl.Binary)
    return frame.with_columns(order).sort("order", "row")


def _account(run: Run, names: list[str], candidates: list[pl.DataFrame], drawn: list[Drawn]) -> dict[str, Any]:
    config = run.config
    takes = [config.sources[name].take for name in names]
    wanted = quotas(takes, config.prompts.total)
    sources = []
    for name, quota, frame, result in zip(names, wanted, candidates, drawn, strict=True):
        stats = files.read_json(run.source(name), "rows", "rejects")
        sources.append(
            {
                "source": name,
                "asked": config.sources[name].take,
                "quota": quota,
                "rows": stats["rows"],
                "rejected": stats["rejects"],
                "available": len(frame),
                "duplicates": result.duplicates,
                "taken": len(result.rows),
            }
        )
    taken = sum(len(result.rows) for result in drawn)
    # `all` asks for what there is, so only numeric quotas can be missed; a total can be missed by any mix.
    asked = config.prompts.total
    if asked is None:
        asked = sum(len(r.rows) if quota == "all" else quota for quota, r in zip(wanted, drawn, strict=True))
    return {"run": run.name, "asked": asked, "taken": taken, "short": taken < asked, "sources": sources}


def table(account: dict[str, Any]) -> str:
    """The account as a plain table, a line a source."""
    lines = [f"{'source':<24} {'asked':>9} {'usable':>9} {'repeated':>9} {'taken':>9}"]
    for row in account["sources"]:
        lines.append(
            f"{row['source']:<24} {row['asked']:>9} {row['available']:>9} {row['duplicates']:>9} {row['taken']:>9}"
        )
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

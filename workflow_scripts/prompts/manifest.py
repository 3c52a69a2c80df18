"""Shards become the prompt manifest: the mix drawn, duplicates dropped, every prompt given its chunk and place."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.prompts.account import account, table
from workflow_scripts.prompts.arrange import arrange, traits
from workflow_scripts.prompts.candidates import Shards
from workflow_scripts.prompts.filters import filters_of, tokens
from workflow_scripts.prompts.mix import DUPLICATE, Drop, Ref, draw
from workflow_scripts.publishing.restore import restore_mix
from workflow_scripts.run import Run

DROPPED = pl.Schema(
    {
        "prompt_id": pl.String,
        "source": pl.String,
        "row": pl.Int64,
        "reason": pl.String,
        "repeats": pl.String,
        "detail": pl.String,
    }
)


def build(run: Run) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """The manifest, the dropped prompts, and the account of the mix.

    The manifest: prompt_id, first_id, source, row, chunk, position, tokens, split, dedupe_key. `source` names the shard
    that the prompt is in, a stand-in's too, and `row` its row there; `tokens` is null where no tokenizer counts them;
    `split` is "train" or "eval". The dropped, in the order drawn: prompt_id, source, row, reason, repeats, detail;
    `repeats` is the id of the taken prompt that a duplicate repeats, or what a filter names.
    Raises PlainError with the account as a table if the sources hold fewer prompts than asked, or none, or if one that
    can't be read is not replaced.
    """
    config = run.config
    filters = filters_of(run)
    shards, near = Shards(run, filters), None
    if config.prompts.dedupe.near:
        from workflow_scripts.prompts.near import NearDuplicates, text_of

        shards.text_of = partial(text_of, turns=config.prompts.turns)
        near = NearDuplicates(config.prompts.dedupe.near)
    own = [shards.own(name) for name in config.sources]
    substitutes = [shards.substitutes(name) for name in config.sources]
    fill = [shards.fill(name, reading) for name, reading in config.prompts.fill.items()]
    takes = [source.take for source in config.sources.values()]
    drawn, filled = draw(own, substitutes, takes, config.prompts.total, fill, near)
    accounted = account(run, shards, drawn, filled)
    if accounted["short"] and not config.prompts.allow_short:
        if accounted["taken"] >= accounted["asked"]:
            raise PlainError(
                f"nothing stands in for {', '.join(accounted['unreplaced'])}:\n{table(accounted)}\n"
                f"Name substitutes that can be read and give more than the mix has, or set prompts.allow_short: true"
            )
        raise PlainError(
            f"the sources hold {accounted['taken']} of the {accounted['asked']} prompts asked:\n{table(accounted)}\n"
            f"Ask for less (take: a number, or all; prompts.total), add sources, or set prompts.allow_short: true"
        )
    if not accounted["taken"] and not config.prompts.allow_short:
        raise PlainError(
            f"no prompt is left to be taken:\n{table(accounted)}\n"
            f"See what drops them, or set prompts.allow_short: true for a run of nothing"
        )

    results = [*drawn, *filled]
    taken = _taken(shards, (ref for result in results for ref in result.refs))
    # By the end of the order's hash, not its beginning: those drawn of a source are the ones that begin lowest.
    spread = taken.sort(pl.col("order").bin.slice(8), "prompt_id")
    manifest = arrange(spread, config.chunk_count()).select(
        prompt_id="prompt_id",
        first_id="first_id",
        source="source",
        row="row",
        chunk="chunk",
        position="position",
        split=pl.when(_share("first_id") < config.prompts.eval).then(pl.lit("eval")).otherwise(pl.lit("train")),
        dedupe_key="dedupe_key",  # so that later runs can exclude what differs in case and spacing only
    )
    counted = pl.Series("tokens", tokens(filters, manifest), dtype=pl.Int32)
    manifest = manifest.insert_column(manifest.columns.index("position") + 1, counted)
    counts = Counter(manifest["split"])
    accounted["split"] = {
        "eval": config.prompts.eval,
        "prompts": {name: counts[name] for name in ("train", "eval")},
        "note": "by first_id: the same in every run and for every seed; the sets of smaller shares are part of it",
    }
    return manifest, _dropped(shards, (drop for result in results for drop in result.drops)), accounted


def _taken(shards: Shards, refs: Iterable[Ref]) -> pl.DataFrame:
    """The taken: prompt_id, first_id, dedupe_key, row, order, source, prefix, answer."""
    turns = shards.run.config.prompts.turns
    rows: dict[str, list[int]] = {}
    for ref in refs:
        rows.setdefault(ref.shard, []).append(ref.row)
    own = {"prompt_id": pl.String, "first_id": pl.String, "dedupe_key": pl.String, "row": pl.Int64, "order": pl.Binary}
    schema = own | {"source": pl.String, "prefix": pl.UInt64, "answer": pl.Int64}
    parts = [pl.DataFrame(schema=schema)]
    for name, found in rows.items():
        part = shards.frames[name][found].select(*own, source=pl.lit(name))
        more = traits(shards.paths[name], part["row"], turns).drop("row")
        parts.append(pl.concat([part, more], how="horizontal"))
    return pl.concat(parts)


def _share(first_id: str) -> pl.Expr:
    """A prompt id's leading 52 bits as a number from 0 to 1: it is a sha256, so its bits are evenly spread already."""
    return pl.col(first_id).str.slice(0, 13).str.to_integer(base=16) / 2**52


def _id(shards: Shards, ref: Ref) -> str:
    found: str = shards.frames[ref.shard]["prompt_id"][ref.row]
    return found


def _dropped(shards: Shards, drops: Iterable[Drop]) -> pl.DataFrame:
    def rows() -> Iterator[tuple[object, ...]]:
        for ref, reason, repeats, detail in drops:
            prompt_id = _id(shards, ref)
            other = _id(shards, repeats) if isinstance(repeats, Ref) else repeats
            if reason == DUPLICATE:
                detail = "the same prompt" if other == prompt_id else "the same but for case, spacing and Unicode form"
            yield prompt_id, ref.shard, shards.frames[ref.shard]["row"][ref.row], reason, other, detail

    return pl.DataFrame(list(rows()), schema=DROPPED, orient="row")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the mix from the sources' shards into the prompt manifest.")
    parser.add_argument(
        "manifest", type=Path, help="results/RUN/manifest.parquet; manifest.json and dropped.parquet go beside it"
    )
    run = Run.holding(parser.parse_args().manifest)
    with timed(run.folder, "prompts"):
        if restore_mix(run):
            say("the manifest: fetched from the bucket and verified")
            return
        manifest, dropped, accounted = build(run)
        files.write_json(run.manifest_json, accounted)
        for path, frame in ((run.dropped, dropped), (run.manifest, manifest)):
            with files.atomic_path(path) as tmp:
                frame.write_parquet(tmp, compression="zstd", statistics=True)
        if run.config.publish.store != "none":
            from workflow_scripts.publishing.publish import settle_mix  # boto3 takes a second

            if settle_mix(run):
                say("the manifest: taken from the bucket, where another machine's was first")
                return
        say(table(accounted))
        split = accounted["split"]
        if split["eval"]:
            say(f"set apart for evaluation: {split['prompts']['eval']:,} of {len(manifest):,} prompts, {split['note']}")


if __name__ == "__main__":
    run_job(main)

"""Prompts of the run to measure with: of every source and length as many as the run has, in any beginning of them."""

import polars as pl

from workflow_scripts import files
from workflow_scripts.completions.generate import prompts_file
from workflow_scripts.prompts import manifest_file
from workflow_scripts.records import Prompt
from workflow_scripts.run import Run

BANDS = 4  # of length, of each source
POOL = 4  # times the sample, drawn by source alone, where no tokenizer has counted the prompts


def ordered(prompts: pl.DataFrame) -> pl.DataFrame:
    """Rows of `prompt_id`, `source` and `length`, in an order of which every beginning is a fair sample.

    The prompts of a source are parted into bands of length, each band is put into the random order that ids are in, and
    the bands are dealt out at an even pace, each over the whole.
    """
    count = pl.len().over("source")
    banded = prompts.sort("source", "length", "prompt_id").with_columns(
        band=pl.int_range(pl.len()).over("source") * BANDS // count
    )
    place = (pl.int_range(pl.len()).over("source", "band") + 0.5) / pl.len().over("source", "band")
    return banded.sort("prompt_id").with_columns(place=place).sort("place", "source", "band").drop("band", "place")


def draw(run: Run, wanted: int) -> list[Prompt]:
    """At most `wanted` prompts, in such an order. Lengths are in tokens, or in characters where none were counted."""
    manifest = manifest_file.read(run, ["prompt_id", "source", "chunk", "tokens"])
    rows = manifest.rename({"tokens": "length"})
    if manifest["tokens"].null_count() < len(manifest):  # a template counts none of what it refuses
        return _read(run, ordered(rows.with_columns(pl.col("length").fill_null(0))).head(wanted))
    pool = _read(run, ordered(rows.with_columns(length=0)).head(POOL * wanted))
    lengths = [
        {
            "prompt_id": prompt["prompt_id"],
            "source": prompt["source"],
            "length": sum(len(message["content"]) for message in prompt["messages"]),
        }
        for prompt in pool
    ]
    by_id = {prompt["prompt_id"]: prompt for prompt in pool}
    return [by_id[name] for name in ordered(pl.DataFrame(lengths)).head(wanted)["prompt_id"]] if pool else []


def _read(run: Run, picked: pl.DataFrame) -> list[Prompt]:
    """The picked prompts, in their order."""
    found: dict[str, Prompt] = {}
    for (chunk,), rows in picked.group_by(["chunk"]):
        ids = set(rows["prompt_id"])
        for prompt in files.read_jsonl_zst(prompts_file(run, f"{chunk:05d}")):
            if prompt["prompt_id"] in ids:
                found[prompt["prompt_id"]] = prompt
    return [found[name] for name in picked["prompt_id"]]

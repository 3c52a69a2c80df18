"""The mix at scale, and what near-dedupe finds: `python tests/benchmarks/mix.py [scale] [found]`.

`scale`: shards of seventeen sources in a temporary folder (2 GB), of 250,000 to 1,000,000 prompts with 2 KB of text
each. Of it 60 % is the question; 5 % of the prompts repeat an earlier one, as it is or in capitals, and 5 % are
near one. Each row of the table is one run of the manifest's job in a process of its own.
`found`: recall and precision of near-dedupe on the made-up world of the tests.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.standin.shards import read_already, shard_row, write_shard
from tests.standin.world import SOURCES, World, overlap
from workflow_scripts.sources.conversion import ShardRow

SIZES = (250_000, 500_000, 1_000_000)
WAYS: dict[str, dict[str, Any]] = {"exact": {}, "near": {"dedupe": {"near": 0.8}}}


def rows(source: int, count: int) -> Iterator[ShardRow]:
    """Prompts of about 1,200 characters with answers of about 800; a third share one of 50 long system prompts."""
    chance = random.Random(source)
    shared = random.Random("shared")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(shared.choices(letters, k=shared.randint(2, 9))) for _ in range(20_000)]
    systems = [" ".join(shared.choices(words, k=100)) for _ in range(50)]
    earlier: list[str] = []
    for number in range(count):
        question = " ".join(chance.choices(words, k=chance.randint(30, 280)))
        kind = chance.random()
        if earlier and kind < 0.05:
            question = chance.choice(earlier)
            question = question.upper() if kind < 0.025 else question
        elif earlier and kind < 0.10:
            near = chance.choice(earlier).split()
            near[chance.randrange(len(near))] = chance.choice(words)
            question = " ".join(near)
        elif len(earlier) < 1000:
            earlier.append(question)
        messages: list[Any] = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": " ".join(chance.choices(words, k=chance.randint(10, 230)))},
        ]
        if chance.random() < 0.33:
            messages.insert(0, {"role": "system", "content": chance.choice(systems)})
        yield shard_row(number, messages)


def write_shards(results: Path, count: int) -> int:
    """The seventeen shards of a run of `count` prompts; bytes of text."""
    for number, name in enumerate(SOURCES):
        share = count // len(SOURCES) + (number < count % len(SOURCES))
        write_shard(results / "sources" / f"{name}-0", rows(number, share))
    import polars as pl

    text = pl.scan_parquet(results / "sources" / "*" / "prompts.parquet").select(
        pl.col("messages").str.len_bytes().sum()
    )
    return int(text.collect().item())


def measured(results: Path, way: str) -> None:
    """The job, in this process; prints what it took as JSON."""
    from workflow_scripts import files
    from workflow_scripts.prompts.manifest import build

    config = {"name": way, "prompts": WAYS[way], "chunks": {"size": 500}}
    run = read_already(results, config, dict.fromkeys(SOURCES))
    start = time.monotonic()
    manifest, dropped, account = build(run)
    files.write_json(run.manifest_json, account)
    dropped.write_parquet(run.dropped)
    manifest.write_parquet(run.manifest)
    used = resource.getrusage(resource.RUSAGE_SELF)
    took = {
        "seconds": time.monotonic() - start,
        "cpu": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss / 1024,
        "taken": len(manifest),
        "dropped": dict(dropped["reason"].value_counts().iter_rows()),
    }
    print(json.dumps(took))


def scale() -> None:
    print("| prompts | text | way | seconds | CPU seconds | peak memory | taken | dropped |")
    print("|---|---|---|---|---|---|---|---|")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            text = write_shards(Path(folder), size)
            for way in WAYS:
                argv = [sys.executable, __file__, "measured", folder, way]
                printed = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
                took = json.loads(printed.splitlines()[-1])
                drops = ", ".join(f"{count:,} {reason}" for reason, count in sorted(took["dropped"].items()))
                cells = [f"{size:,}", f"{text / 1e9:.2f} GB", way, f"{took['seconds']:.0f}", f"{took['cpu']:.0f}"]
                cells += [f"{took['memory']:,.0f} MB", f"{took['taken']:,}", drops]
                print("| " + " | ".join(cells) + " |", flush=True)


def found(pairs: int = 2000) -> None:
    """Recall by similarity of planted pairs, and precision by comparing what was dropped with what it repeats."""
    from workflow_scripts.prompts.manifest import build

    world = World()
    for source in SOURCES:
        for _ in range(300):
            world.add(source, world.text())
    ranges = [(0.7, 0.8), (0.8, 0.82), (0.82, 0.85), (0.85, 0.9), (0.9, 1.0)]
    for low, high in ranges:
        for _ in range(pairs // len(ranges)):
            world.plant_near(low, high - 1e-9, apart=True)
    with tempfile.TemporaryDirectory() as folder:
        run = read_already(Path(folder), {"prompts": WAYS["near"], "chunks": {"count": 10}}, world.shards())
        _, dropped, _ = build(run)
    texts = {row.prompt_id: row.text for row in world.all()}
    gone = dict(dropped.select("prompt_id", "repeats").iter_rows())
    print("| similarity | pairs | dropped |\n|---|---|---|")
    for low, high in ranges:
        planted = [pair for pair in world.pairs if low <= pair.similarity < high]
        there = sum(pair.second.prompt_id in gone for pair in planted)
        print(f"| {low} to {high} | {len(planted)} | {there} ({there / len(planted):.1%}) |")
    right = sum(overlap(texts[one], texts[other]) >= 0.8 for one, other in gone.items())
    print(f"precision: {right} of {len(gone)} dropped are near what they repeat")


def main() -> None:
    match sys.argv[1:]:
        case ["measured", folder, way]:
            measured(Path(folder), way)
        case asked:
            if not asked or "found" in asked:
                found()
            if not asked or "scale" in asked:
                print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start")
                scale()


if __name__ == "__main__":
    main()

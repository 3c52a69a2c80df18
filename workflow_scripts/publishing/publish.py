"""Publishing jobs: finished files in, verified objects in the store and one receipt out.

    start RECEIPT                lock.json, the manifest and what it dropped
    batch RECEIPT                the chunks of one batch; the receipt's file name is its number: 0003.json
    training RECEIPT INDEX       the training shards that results/RUN/training/HASH/training.json lists
    index RECEIPT RECEIPT...     README.md, the dataset card; then index.json, of every object, the last of all

Whatever is in the store already, byte for byte, is only verified: a job that was cut is simply run again.
"""

import argparse
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import orjson

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.prompts import manifest_file
from workflow_scripts.publishing.batches import batch_chunks
from workflow_scripts.publishing.card import card
from workflow_scripts.publishing.digests import content_hash
from workflow_scripts.publishing.preflight import claim
from workflow_scripts.publishing.store import Store, Taken, open_store
from workflow_scripts.records import PublishedObject, Receipt, Sidecar
from workflow_scripts.reporting.accounting import Audit
from workflow_scripts.run import Run

THREADS = 8
OTHER_SECONDS = 60.0  # that a manifest which another machine publishes may take


def publish_start(run: Run, store: Store) -> list[PublishedObject]:
    """Publish what every chunk of the run rests on; most of it is there by now, and is verified."""
    return [claim(store), store.create(run.lock, run.relative(run.lock)), *publish_mix(run, store)]


def publish_mix(run: Run, store: Store) -> list[PublishedObject]:
    """Publish the manifest, its account and what it dropped. Taken, by the first of them, if another machine did."""
    rows = {run.manifest: len(manifest_file.read(run, ["prompt_id"]))}
    return [store.create(path, run.relative(path), rows=rows.get(path)) for path in run.mix]


def settle_mix(run: Run) -> bool:
    """Publish the mix that was drawn here or, if another machine was first, take that one's; True if so.

    To be called before anything rests on it. The first object decides: who made it makes the others.
    """
    store = open_store(run)
    try:
        publish_mix(run, store)
        return False
    except Taken as error:
        if not error.same_run:
            raise
    deadline = time.monotonic() + OTHER_SECONDS
    while missing := [path for path in run.mix if store.look(run.relative(path)) is None]:
        if time.monotonic() > deadline:
            raise PlainError(
                f"{store.address(store.key(run.relative(missing[0])))} does not come: another machine began to publish "
                f"its manifest of this run, and stopped. Go on there; or, if it is lost, delete what is in the run's "
                f"prefix and run the same line again"
            )
        time.sleep(1)
    for path in run.mix:
        store.fetch(run.relative(path), path)
    return True


def publish_batch(run: Run, store: Store, name: str) -> list[PublishedObject]:
    """Publish the chunks of batch `name`, several at a time. PlainError if a file of theirs is missing."""
    chunks = batch_chunks(name, run.chunks())
    missing = [path for chunk in chunks for path in run.chunk_files(chunk) if not path.exists()]
    if missing:
        raise PlainError(
            f"batch {name} can't be published: {missing[0]} is missing ({len(missing)} of "
            f"{3 * len(chunks)} files). Run the same line again: finished chunks stay finished"
        )
    audit = Audit(run)
    with ThreadPoolExecutor(THREADS) as pool:
        published = pool.map(lambda chunk: _publish_chunk(run, store, chunk, audit.chunk(chunk)), chunks)
        return [item for chunk in published for item in chunk]


def _publish_chunk(run: Run, store: Store, chunk: str, sidecar: Sidecar) -> list[PublishedObject]:
    """The data files as the sidecar names them, then the sidecar: who sees it sees a whole chunk."""
    completions, failures, sidecar_path = run.chunk_files(chunk)
    fingerprint = content_hash(sidecar["fingerprint"])
    published = [
        store.create(path, run.relative(path), entry["rows"], entry["sha256"], fingerprint)
        for path, entry in ((completions, sidecar["completions"]), (failures, sidecar["failures"]))
    ]
    return [*published, store.create(sidecar_path, run.relative(sidecar_path), fingerprint=fingerprint)]


def publish_training(run: Run, store: Store, index: Path) -> list[PublishedObject]:
    """Publish the files that a training index lists, then the index."""
    entries = files.read_json(index, "files")["files"]
    folder = index.parent
    with ThreadPoolExecutor(THREADS) as pool:
        published = pool.map(
            lambda entry: store.create(
                folder / entry["path"], run.relative(folder / entry["path"]), entry["rows"], entry["sha256"]
            ),
            entries,
        )
        return [*published, store.create(index, run.relative(index))]


def publish_index(run: Run, store: Store, receipts: list[Path]) -> list[PublishedObject]:
    """Publish the dataset card and the list of every object: as README.md and index.json.

    Where these say something else, as after a redrive, the new ones are README.2.md and index.2.json, and so on.
    PlainError if the store has lost an object since its receipt was written.
    """
    objects: dict[str, PublishedObject] = {}
    for receipt in receipts:
        for item in files.read_json(receipt, "objects")["objects"]:
            if objects.setdefault(item["path"], item) != item:
                raise PlainError(f"two receipts name {item['path']} with different content; delete the older receipt")
    there = store.listing()
    if missing := sorted(path for path, item in objects.items() if there.get(path) != item["bytes"]):
        named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise PlainError(
            f"{store.address(store.folder)} has lost {len(missing)} of the {len(objects)} objects "
            f"that were published there ({named}); no index was written. Delete {receipts[0].parent} and run the same "
            f"line again: it publishes what is missing"
        )
    training = next(path for path in objects if path.endswith("/training.json"))
    readme = _create_numbered(store, card(run, run.folder / training), "README", ".md")
    value = {"run": store.run, "objects": by_path([*objects.values(), readme])}
    content = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return [readme, _create_numbered(store, content, "index", ".json")]


def _create_numbered(store: Store, content: bytes, name: str, end: str) -> PublishedObject:
    """Create NAME.END, or the first of NAME.2.END, NAME.3.END, ... that is free or has this content."""
    for number in count(1):
        try:
            return store.create(content, f"{name}{end}" if number == 1 else f"{name}.{number}{end}")
        except Taken as error:
            if not error.same_run:
                raise
    raise AssertionError("unreachable")


def by_path(objects: Iterable[PublishedObject]) -> list[PublishedObject]:
    return sorted(objects, key=lambda item: item["path"])


def main() -> None:
    """Publish, and write the receipt."""
    parser = argparse.ArgumentParser(description="Publish finished files of a run and write a receipt.")
    jobs = parser.add_subparsers(dest="job", required=True)
    for name in ("start", "batch", "training", "index"):
        jobs.add_parser(name).add_argument("receipt", type=Path, help="the receipt to write")
    jobs.choices["training"].add_argument("index", type=Path, help="training.json, which lists the shards")
    jobs.choices["index"].add_argument("receipts", type=Path, nargs="*", help="the receipts of all else")
    arguments = parser.parse_args()
    receipt: Path = arguments.receipt
    run = Run.holding(receipt)
    with timed(run.folder, "publishing"):
        store = open_store(run)
        match arguments.job:
            case "start":
                objects = publish_start(run, store)
            case "batch":
                objects = publish_batch(run, store, receipt.stem)
            case "training":
                objects = publish_training(run, store, arguments.index)
            case _:
                objects = publish_index(run, store, arguments.receipts)
        files.write_json(receipt, Receipt(objects=by_path(objects)))
    size = sum(item["bytes"] for item in objects)
    say(f"{len(objects)} objects ({size / 1e6:.1f} MB) are in s3://{store.bucket}/{store.folder}, verified")


if __name__ == "__main__":
    run_job(main)

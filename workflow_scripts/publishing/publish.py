"""Publishing jobs: finished files in, verified objects in the store and one receipt out.

    start RECEIPT                lock.json and the manifest, before the first chunk
    batch RECEIPT                the chunks of one batch; the receipt's file name is its number: 0003.json
    training RECEIPT INDEX       the training shards that results/RUN/training/HASH/training.json lists
    index RECEIPT RECEIPT...     index.json, of every object in the other receipts; the last of all

Whatever is in the store already, byte for byte, is only verified: a job that was cut is simply run again.
"""

import argparse
import hashlib
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
from workflow_scripts.publishing.preflight import claim
from workflow_scripts.publishing.store import Store, Taken, open_store
from workflow_scripts.records import Fingerprint, PublishedObject, Receipt, Sidecar
from workflow_scripts.reporting.accounting import Audit
from workflow_scripts.run import Run

THREADS = 8


def publish_start(run: Run, store: Store) -> list[PublishedObject]:
    """Publish what every chunk of the run rests on."""
    rows = len(manifest_file.read(run, ["prompt_id"]))
    return [
        claim(store),
        store.create(run.lock, run.relative(run.lock)),
        store.create(run.manifest, run.relative(run.manifest), rows=rows),
        store.create(run.manifest_json, run.relative(run.manifest_json)),
    ]


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


def content_hash(fingerprint: Fingerprint) -> str:
    """Hex sha256 of a fingerprint's content part: short enough for an object's metadata (2 KB in all)."""
    return hashlib.sha256(orjson.dumps(fingerprint["content"], option=orjson.OPT_SORT_KEYS)).hexdigest()


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


def publish_index(store: Store, receipts: list[Path]) -> list[PublishedObject]:
    """Publish the list of every object: as index.json or, where that lists something else, as index.2.json, ...

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
            f"{store.address(f'{store.prefix}{store.run}/')} has lost {len(missing)} of the {len(objects)} objects "
            f"that were published there ({named}); no index was written. Delete {receipts[0].parent} and run the same "
            f"line again: it publishes what is missing"
        )
    value = {"run": store.run, "objects": by_path(objects.values())}
    content = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    for number in count(1):
        try:
            return [store.create(content, "index.json" if number == 1 else f"index.{number}.json")]
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
                objects = publish_index(store, arguments.receipts)
        files.write_json(receipt, Receipt(objects=by_path(objects)))
    size = sum(item["bytes"] for item in objects)
    say(f"{len(objects)} objects ({size / 1e6:.1f} MB) are in s3://{store.bucket}/{store.prefix}{store.run}/, verified")


if __name__ == "__main__":
    run_job(main)

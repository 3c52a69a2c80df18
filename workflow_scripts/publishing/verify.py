"""Does the bucket hold what the receipts say? `python -m workflow_scripts.publishing.verify results/RUN [--deep]`.

By HEAD: size, the store's own CRC64NVME, and sha256 and run in the metadata. With --deep every object is read, and its
bytes are what counts. Found are the missing, the changed, and the foreign: what is in the run's prefix and on no
receipt or index. Nothing is written.
"""

import argparse
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from workflow_scripts import files, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import publish_hash
from workflow_scripts.jobs import run_job, say
from workflow_scripts.publishing.digests import Digest
from workflow_scripts.publishing.store import Damaged, Store, open_store
from workflow_scripts.records import PublishedObject
from workflow_scripts.run import Run

THREADS = 16
INDEX = re.compile(r"index(\.[1-9]\d*)?\.json")
SHOWN = 20  # of each kind


@dataclass
class Findings:
    """Paths, each with what is wrong."""

    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """A line for each, up to 20 of a kind."""
        found = []
        for kind, paths in (("missing", self.missing), ("changed", self.changed), ("foreign", self.foreign)):
            found += [f"{kind}: {path}" for path in sorted(paths)[:SHOWN]]
            if len(paths) > SHOWN:
                found.append(f"{kind}: and {len(paths) - SHOWN} more")
        return found


def expected(run: Run, store: Store, there: Iterable[str]) -> dict[str, PublishedObject]:
    """What should be there, by path: by the receipts here and the indices in the store. PlainError without any.

    An index that is not what a run wrote names nothing: it is itself found to be changed or foreign.
    """
    found: dict[str, PublishedObject] = {}
    for receipt in sorted(run.folder.glob(f"published/{publish_hash(run.config)}/*.json")):
        found |= {item["path"]: item for item in files.read_json(receipt, "objects")["objects"]}
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(path for path in there if INDEX.fullmatch(path)):
            try:
                index = store.fetch(path, Path(folder) / path)
            except Damaged:
                continue
            objects = files.read_json(Path(folder) / path, "objects")["objects"]
            found = {item["path"]: item for item in [*objects, index]} | found
    if not found:
        raise PlainError(
            f"{run.folder} has no receipts, and {store.address(store.key('index.json'))} is not there, or not the run's"
        )
    return found


def verify(run: Run, store: Store, deep: bool = False) -> tuple[int, Findings]:
    """How many objects were looked at, and what is wrong with them. PlainError if the store can't be asked."""
    there = store.listing()
    objects = expected(run, store, there)
    findings = Findings()
    with ThreadPoolExecutor(THREADS) as pool:
        for path, wrong in zip(
            objects, pool.map(lambda item: _wrong(store, item, deep), objects.values()), strict=True
        ):
            if wrong == "missing":
                findings.missing.append(path)
            elif wrong is not None:
                findings.changed.append(f"{path} ({wrong})")
    for path in there.keys() - objects.keys():
        found = store.look(path)
        if found is not None:
            whose = f"run {found.run}" if found.run else "no run"
            findings.foreign.append(f"{path} (of {whose}, on no receipt)")
    return len(objects), findings


def _wrong(store: Store, item: PublishedObject, deep: bool) -> str | None:
    found = store.look(item["path"])
    if found is None:
        return "missing"
    if found.run != store.run:
        return f"it is of {f'run {found.run}' if found.run else 'no run'} now"
    expected = Digest(item["bytes"], item["sha256"], item["crc64nvme"])
    if found.content != expected:
        now = f"{found.content.bytes} bytes, CRC64NVME {found.content.crc64nvme or 'unknown'}"
        return f"it was {expected.bytes} bytes, CRC64NVME {expected.crc64nvme}, and is {now}"
    if deep:
        try:
            store.read(item["path"])
        except PlainError as error:
            return str(error)
    return None


def main() -> None:
    """Say what is wrong; exit with 1 if anything is."""
    parser = argparse.ArgumentParser(description="Check what a run has published against its receipts.")
    parser.add_argument("run", type=Path, help="results/RUN, or a file in it")
    parser.add_argument("--deep", action="store_true", help="read every object, instead of asking for its checksum")
    arguments = parser.parse_args()
    run = Run.holding(arguments.run / "run.yaml" if arguments.run.is_dir() else arguments.run)
    if processes.run_process() is None:
        processes.claim_run_process()  # an embedded store that is asked ends with this process
    store = open_store(run)
    count, findings = verify(run, store, arguments.deep)
    where = f"s3://{store.bucket}/{store.folder}"
    if lines := findings.lines():
        for line in lines:
            say(line)
        wrong = len(findings.missing) + len(findings.changed) + len(findings.foreign)
        raise PlainError(
            f"{where}: {wrong} of {count} objects are not as published. What is missing is published again once the "
            f"receipts that name it ({run.folder / 'published'}) are deleted; move away yourself what is changed or "
            f"foreign; then run the same line again"
        )
    say(f"{count} objects in {where} are as published{', byte for byte' if arguments.deep else ''}")


if __name__ == "__main__":
    run_job(main)

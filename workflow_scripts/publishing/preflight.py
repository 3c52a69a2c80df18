"""Before the first job: the store is there, honours conditional writes, and `PREFIX/RUN/` is ours.

In comes run.yaml; out go `owner.json` in the bucket, `published/listing.json` (what the bucket holds of this run, so
that chunk jobs know it without a network call) and, where the bucket has it and this folder does not, `lock.json`.
"""

import tempfile
from pathlib import Path

import orjson

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing.store import Store, Taken, open_store
from workflow_scripts.records import PublishedObject
from workflow_scripts.run import Run

OWNER = "owner.json"
LOCK = "lock.json"
# Nobody should wait a minute to hear that the endpoint is wrong.
ATTEMPTS = 3


def owner(run: str) -> bytes:
    """The owner object's content: the same bytes from any machine."""
    return orjson.dumps({"run": run, "format": 1}, option=orjson.OPT_APPEND_NEWLINE)


def claim(store: Store) -> PublishedObject:
    """Make PREFIX/RUN/ ours, or find that it is."""
    return store.create(owner(store.run), OWNER)


def preflight(run: Run) -> None:
    """Start the embedded store if that is configured, check the store, claim the prefix, write the listing.

    PlainError if the store can't be used, if the prefix holds what no run of this name wrote, or if lock.json
    here differs from the published one.
    """
    store = open_store(run, ATTEMPTS)
    listing = store.listing()
    if listing and OWNER not in listing:
        raise PlainError(
            f"{store.address(store.key(min(listing)))}: the run's prefix holds {len(listing)} objects but no {OWNER}: "
            f"something else wrote them; nothing was written. Choose another publish.prefix"
        )
    if OWNER in listing:  # before the first write: a store without conditional writes would replace it
        _check_owner(store)
    claimed = claim(store)
    store.check_create_only(owner(run.name), OWNER)
    listing[OWNER] = claimed["bytes"]
    if LOCK in listing:
        take_lock(run, store)
    paths = {path: {"key": store.key(path), "bytes": listing[path]} for path in sorted(listing)}
    files.write_json(run.published_listing, {"paths": paths})


def _check_owner(store: Store) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / OWNER
        store.fetch(OWNER, found)
        if found.read_bytes() != owner(store.run):
            raise Taken(
                f"{store.address(store.key(OWNER))} is not this run's; nothing was written. "
                f"Choose another publish.prefix",
                same_run=False,
            )


def take_lock(run: Run, store: Store) -> None:
    """Take the published lock.json: it binds this machine too. PlainError if other work was built on another one."""
    if not run.lock.exists() or not run.manifest.exists():
        store.fetch(LOCK, run.lock)
        return
    with tempfile.TemporaryDirectory() as folder:
        published = Path(folder) / LOCK
        store.fetch(LOCK, published)
        if published.read_bytes() != run.lock.read_bytes():
            raise PlainError(
                f"{run.lock} differs from the published {store.address(store.key(LOCK))}: another machine began this "
                f"run first, with other versions of its sources. Move {run.folder} away and run the same line again "
                f"to go on with the published one"
            )

"""Before the first job: the store is there, honours conditional writes, and `PREFIX/RUN/` is ours.

In comes run.yaml; out go `owner.json` in the bucket, `published/listing.json` (what the bucket holds of this run, so
that jobs know it without a network call) and what another machine published before this one began a chunk: lock.json
and the manifest, on which everything else rests.
"""

import tempfile
from pathlib import Path, PurePosixPath

import orjson

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.publishing import s3_errors, uploads
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

    Call it under the results folder's lock: what uploads of this folder are found are dead ones, and are aborted.
    PlainError if the store can't be used, if the prefix holds what no run of this name wrote, or if chunks here rest
    on another lock.json or manifest than the published one.
    """
    store, listing = check_rights(run)
    if run.config.publish.store == "s3":
        with s3_errors.plain(store.address(store.folder)):
            # Not the owner's: uploads to it are other machines' trials, of this moment.
            settled = {store.folder + path for path in listing if path != OWNER}
            if count := uploads.abort_left(store.client, store.bucket, store.folder, run.uploads, settled):
                say(f"aborted {count} uploads that an earlier start had left in {store.address(store.folder)}")
    if LOCK in listing:
        take_lock(run, store)
    if all(run.relative(path) in listing for path in run.mix):
        take_mix(run, store)
    paths = {path: {"key": store.folder + path, "bytes": listing[path]} for path in sorted(listing)}
    joins_once = run.config.publish.store == "s3" and store.joins_once(owner(run.name), OWNER)
    files.write_json(run.published_listing, {"paths": paths, "joins_once": joins_once})


def _check_above(store: Store) -> None:
    """PlainError if publish.prefix lies in a run's folder, which is that run's alone."""
    parts = PurePosixPath(store.prefix).parts
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        key = f"{folder}/{OWNER}"
        if owned := store.owner_of(key):
            raise PlainError(
                f"{store.address(key)}: {folder}/ is the folder of run {owned}; nothing was written. "
                f"Choose another publish.prefix"
            )


def check_rights(run: Run) -> tuple[Store, dict[str, int]]:
    """The store, where the run's prefix is ours and a second write is refused, and what it holds of the run, in bytes.

    PlainError as of `preflight`. The prefix is claimed: that takes the rights that a run takes.
    """
    store = open_store(run, ATTEMPTS, patience=0.0)
    listing = store.listing()
    _check_above(store)
    if listing and OWNER not in listing:
        raise PlainError(
            f"{store.address(store.folder + min(listing))}: the run's prefix holds {len(listing)} objects but no "
            f"{OWNER}: something else wrote them; nothing was written. Choose another publish.prefix"
        )
    if OWNER in listing:  # before the first write: a store without conditional writes would replace it
        _check_owner(store)
    claimed = claim(store)
    store.check_create_only(owner(run.name), OWNER)
    listing[OWNER] = claimed["bytes"]
    return store, listing


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
    if run.lock.exists() and store.holds(LOCK, run.lock):
        return
    if run.lock.exists() and run.manifest.exists():
        raise PlainError(
            f"{run.lock} differs from the published {store.address(store.key(LOCK))}: another machine began this run "
            f"first, with other versions of its sources. Move {run.folder} away and run the same line again to go on "
            f"with the published one"
        )
    store.fetch(LOCK, run.lock)
    say(f"{LOCK}: taken from the bucket")


def publish_lock(run: Run) -> None:
    """Publish lock.json, or take the one that another machine published meanwhile."""
    store = open_store(run, ATTEMPTS, patience=0.0)
    try:
        store.create(run.lock, LOCK)
    except Taken as error:
        if not error.same_run:
            raise
        take_lock(run, store)


def take_mix(run: Run, store: Store) -> None:
    """Where a manifest is here, and another one published, take that. PlainError if a chunk rests on the one here.

    A manifest that is not here is fetched by the manifest's job, for Snakemake would remove it before that.
    """
    if not run.manifest.exists() or all(path.exists() and store.holds(run.relative(path), path) for path in run.mix):
        return
    if run.begun():
        raise PlainError(
            f"{run.manifest} differs from the published {store.address(store.key(run.relative(run.manifest)))}: "
            f"another machine drew this run's prompts first, and chunks were begun here with others. Move "
            f"{run.folder} away and run the same line again to go on with the published run"
        )
    for path in run.mix:
        store.fetch(run.relative(path), path)
    for prompts in run.folder.glob("prompts/*.jsonl.zst"):
        prompts.unlink()  # chunks make them again, of the new manifest
    say("the manifest: taken from the bucket, where another machine's was first")

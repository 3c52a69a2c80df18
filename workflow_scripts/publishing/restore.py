"""What is already in the bucket is fetched and verified, never made again: the manifest, chunks, training shards.

A chunk's upload starts when its three files are finished here, and its sidecar goes last. An upload that was cut
therefore leaves the data files alone in the bucket, and goes on from the local ones. If those are gone too, the
completions can't be made again byte for byte (unless the chunk's journal is here), and would be refused as foreign
after they were paid for: so that is said before, by name.
"""

from pathlib import Path, PurePosixPath

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.records import Sidecar
from workflow_scripts.run import Run, is_redrive


def published_paths(run: Run) -> set[str]:
    """What the bucket held of this run when it started; empty without publishing."""
    if run.config.publish.store == "none" or not run.published_listing.exists():
        return set()
    return set(files.read_json(run.published_listing, "paths")["paths"])


def nothing_left(run: Run) -> bool:
    """Whether the manifest and every chunk are in the bucket or here, so that no prompt need be asked any more."""
    published = published_paths(run)
    needed = [run.manifest, *(run.sidecar(chunk) for chunk in run.chunks())]
    return bool(published) and all(run.relative(path) in published or path.exists() for path in needed)


def restore_mix(run: Run) -> bool:
    """Fetch the manifest, its account and what it dropped; False if they are not in the bucket and must be drawn."""
    if not published_paths(run).issuperset(run.relative(path) for path in run.mix):
        return False
    from workflow_scripts.publishing.store import open_store

    store = open_store(run)
    for path in run.mix:
        store.fetch(run.relative(path), path)
    return True


def restore_redrives(run: Run) -> list[str]:
    """Fetch the published redrives that are not here; their names."""
    published = published_paths(run)
    found = [
        name
        for path in sorted(published)
        if is_redrive(name := PurePosixPath(path).stem) and path == run.relative(run.sidecar(name))
    ]
    return [name for name in found if not run.sidecar(name).exists() and restore_chunk(run, name)]


def restore_training(run: Run, index: Path) -> bool:
    """Fetch the training shards that the published `index` lists, then the index; False if it is not in the bucket."""
    if run.relative(index) not in published_paths(run):
        return False
    from workflow_scripts.publishing.store import open_store

    store = open_store(run)
    staged = index.with_name(f".{index.name}.fetched.tmp")
    try:
        store.fetch(run.relative(index), staged)
        for entry in files.read_json(staged, "files")["files"]:
            shard = index.parent / entry["path"]
            if store.fetch(run.relative(shard), shard)["sha256"] != entry["sha256"]:
                shard.unlink()
                raise PlainError(
                    f"{store.address(store.key(run.relative(shard)))} is not the file that {index.name} beside it "
                    f"names. Move both objects away yourself"
                )
        staged.replace(index)
    finally:
        staged.unlink(missing_ok=True)
    return True


def restore_chunk(run: Run, chunk: str) -> bool:
    """Fetch the chunk's files from the bucket; False if they are not there and must be generated.

    Needs no network to say False. Completions and failures are those that the sidecar names, which is written
    last. PlainError if the bucket has half a chunk, or other files than the sidecar says.
    """
    published = published_paths(run)
    paths = [run.relative(path) for path in run.chunk_files(chunk)]
    there = [path for path in paths if path in published]
    if not there:
        return False
    # Only now: boto3 takes long to import, and most chunks are not there.
    from workflow_scripts.publishing.store import open_store

    store = open_store(run)
    # A listing from before another job, or another machine, published the rest is no half chunk.
    missing = [path for path in paths if path not in published and store.look(path) is None]
    if missing:
        if run.journal(chunk).exists():
            return False
        keys = ", ".join(store.address(store.key(path)) for path in there)
        raise PlainError(
            f"chunk {chunk} is half published: {', '.join(missing)} never arrived, and the local files are gone. "
            f"Run it on the machine that made it, or delete from the bucket yourself what is there ({keys}) and run "
            f"the same line again"
        )
    completions, failures, sidecar_path = run.chunk_files(chunk)
    fetched = {path: store.fetch(run.relative(path), path) for path in (completions, failures)}
    staged = sidecar_path.with_name(f".{sidecar_path.name}.fetched.tmp")
    try:
        store.fetch(run.relative(sidecar_path), staged)
        sidecar: Sidecar = files.read_json(staged, "completions", "failures", "prompts_sha256")
        for path, entry in ((completions, sidecar["completions"]), (failures, sidecar["failures"])):
            if fetched[path]["sha256"] != entry["sha256"]:
                raise PlainError(
                    f"{store.address(fetched[path]['key'])} is not the file that the sidecar {paths[-1]} beside it "
                    f"names (sha256 {fetched[path]['sha256']}, not {entry['sha256']}). Move both objects away yourself"
                )
        prompts = run.prompts(chunk)
        if prompts.exists() and files.sha256_file(prompts) != sidecar["prompts_sha256"]:
            raise PlainError(
                f"{prompts} holds other prompts than the published chunk answers (its sidecar is {paths[-1]}): the "
                f"manifests differ. Move {run.folder} away and run the same line again to take the published run"
            )
        staged.replace(sidecar_path)
    except BaseException:
        for path in (completions, failures, staged):
            path.unlink(missing_ok=True)
        raise
    return True

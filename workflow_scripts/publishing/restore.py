"""A chunk that is already in the bucket is fetched and verified, never generated again.

A chunk's upload starts when its three files are finished here, and its sidecar goes last. An upload that was cut
therefore leaves the data files alone in the bucket, and goes on from the local ones. If those are gone too, the
completions can't be made again byte for byte (unless the chunk's journal is here), and would be refused as foreign
after they were paid for: so that is said before, by name.
"""

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.records import Sidecar
from workflow_scripts.run import Run


def published_paths(run: Run) -> set[str]:
    """What the bucket held of this run when it started; empty without publishing."""
    if run.config.publish.store == "none" or not run.published_listing.exists():
        return set()
    return set(files.read_json(run.published_listing, "paths")["paths"])


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
    missing = [path for path in paths if path not in published and not store.exists(path)]
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

"""One source to its shard: results/sources/SOURCE-HASH, and results/RUN/sources/SOURCE.json that names it.

Of a dataset that can't be read, and that others may stand in for, SOURCE.json says why.
"""

import argparse
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from workflow_scripts import config, files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.publishing.restore import nothing_left
from workflow_scripts.run import Run
from workflow_scripts.sources import NORMALIZER_VERSION
from workflow_scripts.sources.locking import Locked
from workflow_scripts.sources.readers import PARQUET, Elsewhere, NamedFile, ending, resolve
from workflow_scripts.sources.reading import Reading
from workflow_scripts.sources.shard import PromptsWriter, finished


class SourceFile(NamedTuple):
    """A file, on this machine, that is to be read.

    `name` is what rows are named by: a local file's own, a hub file's path in its repository.
    `sha256` is what the run's lock.json recorded; None where the download was verified against the hub's hash.
    """

    path: Path
    name: str
    bytes: int
    sha256: str | None

    @classmethod
    def of(cls, path: Path) -> "SourceFile":
        """The local file as it is now."""
        return cls(path, path.name, path.stat().st_size, files.sha256_file(path))


def build_shard(
    name: str,
    reading: config.Reading,
    sources: Sequence[SourceFile | Elsewhere],
    folder: Path,
    origin: dict[str, Any] | None = None,
    processes: int = 0,
) -> dict[str, Any]:
    """Make the shard `folder` of the source `name`, or find it whole; return its stats, `origin` among them.

    With `processes`, so many convert the rows; the shard is the same.
    Runs that need the same shard wait for each other. PlainError if a file is not as recorded or is broken, and if
    the rows don't fit the shape.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        with files.file_lock(lock, wait=False):
            return _find_or_build(name, reading, sources, folder, origin, processes)
    except files.Locked:
        say(f"source {name}: another run is reading it; waiting")
    with files.file_lock(lock):
        return _find_or_build(name, reading, sources, folder, origin, processes)


def _find_or_build(
    name: str,
    reading: config.Reading,
    sources: Sequence[SourceFile | Elsewhere],
    folder: Path,
    origin: dict[str, Any] | None,
    processes: int,
) -> dict[str, Any]:
    stats = finished(folder)
    if stats is not None:
        say(f"source {name}: {stats['prompts']:,} prompts are in {folder} already")
        return stats
    tmp = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    try:
        stats = _build(name, reading, sources, tmp, origin or {}, processes)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)  # a damaged one, or an older version's
    tmp.replace(folder)
    files.fsync_folder(folder.parent)
    return stats


def _build(
    name: str,
    reading: config.Reading,
    sources: Sequence[SourceFile | Elsewhere],
    tmp: Path,
    origin: dict[str, Any],
    processes: int,
) -> dict[str, Any]:
    start = time.monotonic()
    total_bytes = sum(file.bytes for file in sources)
    local = [file for file in sources if isinstance(file, SourceFile)]
    if len(local) == len(sources):
        say(f"source {name}: reading {len(sources)} file{'s' * (len(sources) != 1)}, {total_bytes:,} bytes")
    named = [NamedFile(file.path if isinstance(file, SourceFile) else file, file.name) for file in sources]
    # Arrow's own allocator keeps what one row group needed; the system's gives it back.
    pa.set_memory_pool(pa.system_memory_pool())
    rows = Reading(name, reading)
    prompts = tmp / "prompts.parquet"
    with _unchanged(local), files.atomic_path(prompts) as path:
        writer = PromptsWriter(path)
        try:
            files.write_jsonl_zst(tmp / "rejects.jsonl.zst", rows.run(named, writer, processes))
        finally:
            writer.close()
    rows.check()
    tally = rows.tally
    assert tally.rows == tally.prompts + tally.rejects.total()
    stats = {
        "normalizer": NORMALIZER_VERSION,
        "origin": origin,
        **tally.to_json(),
        "bytes": total_bytes,
        "prompts_bytes": prompts.stat().st_size,
        "prompts_sha256": files.sha256_file(prompts),
        "seconds": round(time.monotonic() - start, 3),
    }
    files.write_json(tmp / "stats.json", stats)
    say(f"source {name}: {tally.prompts:,} prompts of {tally.rows:,} rows, {tally.rejects.total():,} rejected")
    return stats


@contextmanager
def _unchanged(sources: list[SourceFile]) -> Iterator[None]:
    """Check that the files' bytes are those recorded, in a thread while they are read.

    PlainError if they are not, whatever else was wrong with them, and if they were touched meanwhile.
    """
    before = [_identity(file) for file in sources]
    with ThreadPoolExecutor(1) as thread:
        checks = thread.map(_check_content, sources, before)
        try:
            yield
        except PlainError:
            list(checks)
            raise
        except BaseException:
            thread.shutdown(wait=False, cancel_futures=True)
            raise
        list(checks)
    for file, identity in zip(sources, before, strict=True):
        if _identity(file) != identity:
            raise PlainError(f"{file.path} changed while it was read; run the same line again")


def _check_content(file: SourceFile, identity: tuple[int, int, int]) -> None:
    if file.sha256 is not None and files.sha256_file(file.path) != file.sha256:
        raise _changed(file, identity[0])


def _changed(file: SourceFile, size: int) -> PlainError:
    return PlainError(
        f"{file.path} has changed since this run began ({file.bytes:,} bytes then, {size:,} now). Put the "
        f"old file back, or run the same line again: with the new file it starts a new run"
    )


def _identity(file: SourceFile) -> tuple[int, int, int]:
    """What tells whether the file was touched; PlainError unless it has its recorded size."""
    try:
        stat = file.path.stat()
    except OSError as error:
        raise PlainError(
            f"{file.path}: {error.strerror}. This run was started with it: put it back, or start a new run without it"
        ) from error
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def ensure_shard(results: Path, name: str, reading: config.Reading, locked: Locked, processes: int = 0) -> Path:
    """The shard folder of a source, whole: as it is, or built from the files that were recorded."""
    folder = results / str(locked["shard"])
    if finished(folder) is None:
        origin = {key: value for key, value in locked.items() if key != "shard"}
        with _recorded_files(name, reading, locked) as sources:
            build_shard(name, reading, sources, folder, origin, processes)
    return folder


@contextmanager
def _recorded_files(name: str, reading: config.Reading, locked: Locked) -> Iterator[Sequence[SourceFile | Elsewhere]]:
    """The files of a source: those of the hub, or local ones where they are now, by name, since folders may move."""
    if reading.path is not None:
        yield _local_files(reading.path, locked)
        return
    from workflow_scripts.sources import download, hub, remote, transfer

    found, say_as = hub.Resolved.from_json(locked), f"source {name}"
    in_parts = reading.sample is not None and all(ending(Path(file.path)) in PARQUET for file in found.files)
    paths: Sequence[Path | None] = (
        [download.find(found.dataset, found.revision, file) for file in found.files]
        if in_parts
        else download.fetch_all(found, say_as)
    )
    with transfer.new_client() as client:
        yield [
            remote.RemoteFile(client, found.dataset, found.revision, file, say_as)
            if path is None
            else SourceFile(path, file.path, file.bytes, None)
            for path, file in zip(paths, found.files, strict=True)
        ]


def _local_files(path_pattern: str, locked: Locked) -> list[SourceFile]:
    paths, recorded = resolve(path_pattern), locked["files"]
    if [path.name for path in paths] != [file["name"] for file in recorded]:
        raise PlainError(
            f"{path_pattern} names other files than when this run began ({len(paths)} now, {len(recorded)} then). Put "
            f"them back, or run the same line again: with the new files it starts a new run"
        )
    return [
        SourceFile(path, path.name, file["bytes"], file["sha256"]) for path, file in zip(paths, recorded, strict=True)
    ]


def normalize(path: Path, processes: int = 0) -> None:
    """Write results/RUN/sources/SOURCE.json at `path`; the shard it names exists then."""
    run, name = Run.holding(path), path.stem
    if name not in run.config.sources:
        raise PlainError(f"{path}: the run has no source {name!r}; it has {', '.join(run.config.sources)}")
    locked: Locked = files.read_json(run.lock, "sources")["sources"][name]
    if nothing_left(run):  # what needs the shard after all makes it itself
        say(f"source {name}: not needed, every chunk is in the bucket")
        files.write_json(path, {"source": name, "skipped": "every chunk is in the bucket"})
        return
    if "unavailable" in locked:
        say(f"source {name}: {locked['unavailable']['reason']}. Its substitutes stand in")
        files.write_json(path, {"source": name, "unavailable": locked["unavailable"]})
        return
    with timed(run.folder, "sources"):
        folder = ensure_shard(run.results, name, run.config.sources[name], locked, processes)
        stats = files.read_json(folder / "stats.json")
        files.write_json(
            path,
            {
                "source": name,
                "shard": folder.relative_to(run.results).as_posix(),
                "rows": stats["rows"],
                "prompts": stats["prompts"],
                "rejects": stats["rejects"],
                "sha256": stats["prompts_sha256"],
            },
        )


def main() -> None:
    """The job."""
    parser = argparse.ArgumentParser(description="Read one source into its normalized shard.")
    parser.add_argument("path", type=Path, help="results/RUN/sources/SOURCE.json")
    parser.add_argument("--threads", type=int, default=1, help="with several, as many processes convert the rows")
    arguments = parser.parse_args()
    normalize(arguments.path, arguments.threads if arguments.threads > 1 else 0)


if __name__ == "__main__":
    run_job(main)

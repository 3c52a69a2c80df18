"""What is no longer needed, with its size, and its removal when told: `python -m workflow_scripts.files.clean`.

- journals of chunks that are published: their completions are in the store, and would be fetched from there;
- with `--journals RUN`, journals of that run's finished chunks, published or not;
- superseded runs: an older run of the same name, published whole, which results/NAME no longer points to;
- environments that nobody holds and that were unused for 30 days: clones share them.

Nothing that is neither published nor asked for by name is ever touched.
"""

import argparse
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workflow_scripts import files, results_lock
from workflow_scripts.jobs import run_job, say
from workflow_scripts.run import Run

UNUSED_SECONDS = 30 * 24 * 3600


@dataclass(frozen=True)
class Item:
    """Something that can go: a file or a folder, why, and its size on disk in bytes."""

    path: Path
    why: str
    bytes: int
    lock: Path | None = None  # to be held exclusively while it is removed


def find(results: Path, journals_of: list[Path]) -> list[Item]:
    """Everything that can go, in the results folder and in the cache."""
    runs = [Run(path.parent) for path in sorted(results.glob("*/run.yaml")) if not path.parent.is_symlink()]
    superseded = [item for run in runs for item in _superseded(run)]
    gone = {item.path for item in superseded}
    named = {path.resolve() for path in journals_of}
    journals = [
        item for run in runs if run.folder not in gone for item in _journals(run, run.folder.resolve() in named)
    ]
    return [*journals, *superseded, *_environments(files.cache_home() / "envs")]


def published(run: Run) -> set[str]:
    """The paths that the run's receipts name, wherever they were published to."""
    receipts = [path for path in run.folder.glob("published/*/*.json")]
    return {item["path"] for path in receipts for item in files.read_json(path)["objects"]}


def _journals(run: Run, asked: bool) -> Iterator[Item]:
    there = published(run)
    for journal in sorted(run.folder.glob("journal/*.jsonl")):
        sidecar = run.sidecar(journal.stem)
        if asked and sidecar.exists():
            yield Item(journal, "journal of a finished chunk, asked for by name", _size(journal))
        elif run.relative(sidecar) in there:
            yield Item(journal, "journal of a published chunk", _size(journal))


def _superseded(run: Run) -> Iterator[Item]:
    name = run.config.name
    link = run.results / name
    current = link.resolve() if link.is_symlink() else run.folder.resolve()
    there = published(run)
    whole = "index.json" in there and all(
        run.relative(sidecar) in there for sidecar in run.folder.glob("completions/[0-9]*[0-9].json")
    )
    if whole and current != run.folder.resolve():
        yield Item(run.folder, f"published whole; {name} is now {current.name}", _size(run.folder))


def _environments(folder: Path) -> Iterator[Item]:
    for marker in sorted(folder.glob("*/draftmill.json")):
        unused = time.time() - marker.stat().st_mtime
        lock = folder / f"{marker.parent.name}.lock"
        if unused < UNUSED_SECONDS or _held(lock):
            continue
        yield Item(marker.parent, f"environment, unused for {unused / 86400:.0f} days", _size(marker.parent), lock)


def _held(lock: Path) -> bool:
    try:
        with files.file_lock(lock, wait=False):
            return False
    except files.Locked:
        return True


def _size(path: Path) -> int:
    parts = [path] if path.is_file() else path.rglob("*")
    return sum(part.lstat().st_blocks * 512 for part in parts if not part.is_dir())


def remove(item: Item) -> None:
    """Remove it; an environment that somebody took meanwhile stays."""
    if item.lock is None:
        _remove(item.path)
        return
    try:
        with files.file_lock(item.lock, wait=False):
            _remove(item.path)
    except files.Locked:
        say(f"{item.path} is in use: it stays")


def _remove(path: Path) -> None:
    if path.is_dir():
        (path / "draftmill.json").unlink(missing_ok=True)  # first, so that half an environment is none
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="Show, and with --remove delete, what is no longer needed.")
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), help="the results folder")
    parser.add_argument("--remove", action="store_true", help="delete what is shown")
    parser.add_argument(
        "--journals", type=Path, nargs="*", default=[], metavar="RUN", help="also journals of these runs"
    )
    args = parser.parse_args()
    if args.remove:
        results_lock.take(args.results, "clean")
    items = find(args.results, args.journals)
    for item in items:
        say(f"{item.bytes / 1e6:10,.1f} MB  {item.path}  ({item.why})")
        if args.remove:
            remove(item)
    total = sum(item.bytes for item in items) / 1e6
    say(f"{total:10,.1f} MB  {'removed' if args.remove else 'in all; --remove deletes it'}")


if __name__ == "__main__":
    run_job(main)

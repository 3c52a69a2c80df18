"""What is no longer needed, with its size, and its removal when told: `python -m workflow_scripts.files.clean`.

- journals of chunks that are published: their completions are in the store, and would be fetched from there;
- with `--journals RUN`, journals of that run's finished chunks, published or not, if the chunks' files are unharmed;
- superseded runs: an older run of the same name, published whole, which results/NAME no longer points to;
- environments that nobody holds and that were unused for 30 days: clones share them;
- what is left of any of these where a removal was cut short.

Published is what the receipts name and, before anything is removed, what the store still has: it is asked then, the
embedded one is started for it. Nothing that is neither published nor asked for by name is ever touched.
"""

import argparse
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow_scripts import files, processes, results_lock
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say
from workflow_scripts.publishing.preflight import ATTEMPTS
from workflow_scripts.publishing.store import open_store
from workflow_scripts.reporting.accounting import check_file
from workflow_scripts.run import Run

UNUSED_SECONDS = 30 * 24 * 3600
IF_REMOVED = "--remove deletes it, but asks the store first whether it still has what was published"
REMOVED = ".removed"  # what is being removed is named .NAME.removed


@dataclass(frozen=True)
class Item:
    """Something that can go: a file or a folder, why, and its size on disk in bytes."""

    path: Path
    why: str
    bytes: int
    lock: Path | None = None  # to be held exclusively while it is removed


class Published:
    """What of a run is published: by its receipts and, if the store is to be asked, still there."""

    def __init__(self, run: Run, ask: bool) -> None:
        self.run = run
        self.ask = ask
        receipts = run.folder.glob("published/*/*.json")
        self._objects = {
            (item["path"], item["bytes"]) for path in receipts for item in files.read_json(path)["objects"]
        }
        self.paths = {path for path, _ in self._objects}

    def has(self, paths: set[str]) -> bool:
        """Whether all of `paths` are published. The store is asked only for what receipts name."""
        return paths <= self.paths and (not self.ask or paths <= self._there)

    @cached_property
    def _there(self) -> set[str]:
        run = self.run
        try:
            if run.config.publish.store == "embedded" and not run.store.exists():
                raise PlainError(f"{run.store} is gone")  # rather than start an empty one
            listing = open_store(run, ATTEMPTS).listing()
        except PlainError as error:
            say(f"{run.folder}: what was published stays, for its store can't be asked: {error}")
            return set()
        there = {path for path, _ in self._objects & listing.items()}
        if lost := self.paths - there:
            say(
                f"{run.folder}: its store lacks {len(lost)} of {len(self.paths)} objects ({min(lost)}): those stay here"
            )
        return there


def find(results: Path, journals_of: list[Path], ask_store: bool) -> list[Item]:
    """Everything that can go, in the results folder and in the cache. Says why what was asked for stays."""
    envs = files.cache_home() / "envs"
    named = {path.resolve() for path in journals_of}
    items = [*_cut_short(results), *_cut_short(envs)]
    for run in [Run(path.parent) for path in sorted(results.glob("[!.]*/run.yaml")) if not path.parent.is_symlink()]:
        published = Published(run, ask_store)
        superseded = _superseded(run, published)
        items += [superseded] if superseded else _journals(run, run.folder.resolve() in named, published)
    return [*items, *_environments(envs)]


def _cut_short(folder: Path) -> Iterator[Item]:
    for path in sorted(folder.glob(f".*{REMOVED}")):
        lock = folder / f"{path.name[1:].removesuffix(REMOVED)}.lock"
        if lock.exists() and _held(lock):  # an environment's, that is being removed or is there again
            continue
        yield Item(path, "left by a removal that was cut short", _size(path), lock if lock.exists() else None)


def _journals(run: Run, asked: bool, published: Published) -> Iterator[Item]:
    for journal in sorted(run.folder.glob("journal/*.jsonl")):
        if asked and _is_finished(run, journal):
            yield Item(journal, "journal of a finished chunk, asked for by name", _size(journal))
        elif published.has({run.relative(path) for path in run.chunk_files(journal.stem)}):
            yield Item(journal, "journal of a published chunk", _size(journal))


def _is_finished(run: Run, journal: Path) -> bool:
    """Whether the chunk's files are there, as they were finished: else the journal alone may have the answers."""
    completions, failures, sidecar = run.chunk_files(journal.stem)
    if not sidecar.exists():
        return False
    try:
        entries = files.read_json(sidecar)
        check_file(completions, entries["completions"])
        check_file(failures, entries["failures"])
    except PlainError as error:
        say(f"{journal} stays, unless it is published: {error}")
        return False
    return True


def _superseded(run: Run, published: Published) -> Item | None:
    name = run.config.name
    link = run.results / name
    current = link.resolve() if link.is_symlink() else run.folder.resolve()
    # Of redrives too, and of what was only begun: its journal holds answers.
    answered = [*run.folder.glob("completions/[!.]*.json"), *run.folder.glob("journal/*.jsonl")]
    sidecars = {run.relative(run.sidecar(path.stem)) for path in answered}
    if current != run.folder.resolve() and published.has({"index.json", *sidecars, *published.paths}):
        return Item(run.folder, f"published whole; {name} is now {current.name}", _size(run.folder))
    return None


def _environments(folder: Path) -> Iterator[Item]:
    for marker in sorted(folder.glob("[!.]*/draftmill.json")):
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
    if not path.is_dir():
        path.unlink()
        return
    if not path.name.endswith(REMOVED):  # else it was renamed before
        path = path.rename(path.with_name(f".{path.name}{REMOVED}"))  # half a run or environment is none
    shutil.rmtree(path)


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
        processes.claim_run_process()  # an embedded store that is asked ends with this process
    items = find(args.results, args.journals, ask_store=args.remove)
    for item in items:
        say(f"{item.bytes / 1e6:10,.1f} MB  {item.path}  ({item.why})")
        if args.remove:
            remove(item)
    total = sum(item.bytes for item in items) / 1e6
    say(f"{total:10,.1f} MB  {'removed' if args.remove else f'in all; {IF_REMOVED}'}")


if __name__ == "__main__":
    run_job(main)

"""A file of a hub repository on this machine: whole, checked, and fetched once, however often the fetching dies.

Files are kept by content, DRAFTMILL_HOME/hub/OWNER--NAME/HASH/FILE: a new commit fetches only what it changed. While
it is fetched it is FILE.part, locked, and goes on where it ended: a commit's file never changes, and its hash tells
in the end, so the part needs no ETag beside it. What huggingface_hub has in its cache is used from there.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import httpx2
import huggingface_hub

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.sources import readers
from workflow_scripts.sources.hub import HubFile, Resolved
from workflow_scripts.sources.readers import as_size
from workflow_scripts.sources.transfer import Transfer, new_client, other_range


def fetch_all(found: Resolved, say_as: str) -> list[Path]:
    """The paths of all files of a source, as `fetch` gives them; what is to be downloaded is said first.

    PlainError, besides, if the disk has no room for it.
    """
    here = [find(found.dataset, found.revision, file) for file in found.files]
    missing = {
        _place(found.dataset, found.revision, file): file
        for file, path in zip(found.files, here, strict=True)
        if path is None
    }
    if missing:
        parts = sum(min(_size(_part(place)), file.bytes) for place, file in missing.items())
        needed = sum(file.bytes for file in missing.values()) - parts
        held = sum(file.bytes for file, path in zip(found.files, here, strict=True) if path is not None) + parts
        _check_room(found.dataset, needed, len(missing), say_as)
        already = f" ({as_size(held)} are here already)" if held else ""
        say(
            f"{say_as}: downloading {len(missing)} file{'s' * (len(missing) != 1)}, {as_size(needed)} from the hub"
            f"{already}"
        )
    return [
        fetch(found.dataset, found.revision, file, say_as) if path is None else path
        for file, path in zip(found.files, here, strict=True)
    ]


def _check_room(dataset: str, needed: int, count: int, say_as: str) -> None:
    folder = files.cache_home() / "hub"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise PlainError(
            f"{say_as}: {count} file{'s' * (count != 1)} of {dataset} take {as_size(needed)} in {folder}, where "
            f"{as_size(free)} are free. Make room, choose a folder on another disk (DRAFTMILL_HOME), or read a part "
            f"of Parquet files: `sample`"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def find(dataset: str, revision: str, file: HubFile) -> Path | None:
    """The path of a file that is on this machine, in huggingface_hub's cache or in ours, whole; else None."""
    if readers.ending(Path(file.path)) is None:
        raise PlainError(f"{dataset}: {file.path} is not of a kind that is read, and is not downloaded")
    cached = huggingface_hub.try_to_load_from_cache(dataset, file.path, revision=revision, repo_type="dataset")
    if isinstance(cached, str) and is_whole(Path(cached), file):
        return Path(cached)
    path = _place(dataset, revision, file)
    return path if is_whole(path, file) else None


def fetch(dataset: str, revision: str, file: HubFile, say_as: str) -> Path:
    """The path of a file of the dataset at the commit `revision`, with the bytes that the hub lists.

    `say_as` opens the lines of progress. Several processes may ask for one file: one fetches, the others wait.
    PlainError if it can't be had (a lock binds the run to it: gated counts as any other failure here), OSError from
    the disk.
    """
    found = find(dataset, revision, file)
    if found is not None:
        return found
    path = _place(dataset, revision, file)
    files.make_folder(path.parent)
    part = _part(path)
    while True:
        with _alone(part, f"{say_as}: {path.name}") as out:
            if is_whole(path, file):  # another process fetched it meanwhile
                if _is_at(out, part):
                    part.unlink()
                return path
            if not _is_at(out, part):  # another process gave up on it meanwhile
                continue
            _fill(out, part, dataset, revision, file, say_as)
            os.fsync(out.fileno())
            part.replace(path)
        files.fsync_folder(path.parent)
        return path


def is_whole(path: Path, file: HubFile) -> bool:
    """Whether `path` holds the file's bytes: by sha256, or as git hashes what it holds itself."""
    try:
        if path.stat().st_size != file.bytes:
            return False
        if file.sha256 is not None:
            return files.sha256_file(path) == file.sha256
        if file.blob_id is None:
            return True
        with path.open("rb") as data:
            return (
                hashlib.file_digest(data, lambda: hashlib.sha1(b"blob %d\0" % file.bytes)).hexdigest() == file.blob_id
            )
    except FileNotFoundError:
        return False


def _place(dataset: str, revision: str, file: HubFile) -> Path:
    # Readers go by the ending, and rejects name the file: it keeps its name.
    content = file.sha256 or file.blob_id or hashlib.sha256(f"{revision}/{file.path}".encode()).hexdigest()
    return files.cache_home() / "hub" / dataset.replace("/", "--") / content / Path(file.path).name


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


@contextmanager
def _alone(part: Path, what: str) -> Iterator[BinaryIO]:
    """`part`, open to be appended to, and locked. By then it may have been renamed or deleted: see _is_at."""
    try:
        with files.file_lock(part, wait=False) as out:
            yield out
            return
    except files.Locked:
        say(f"{what}: another job is downloading it; waiting")
    with files.file_lock(part) as out:
        yield out


def _is_at(out: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(out.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _fill(out: BinaryIO, part: Path, dataset: str, revision: str, file: HubFile, say_as: str) -> None:
    """Fetch what `out`, the file at `part`, lacks of the file; PlainError if other bytes came, twice."""
    for _ in range(2):
        with new_client() as client:
            _Whole(client, out, dataset, revision, file, say_as).run()
        if is_whole(part, file):
            return
        say(f"{say_as}: {file.path} arrived with other bytes than the hub lists; fetching it again")
        os.ftruncate(out.fileno(), 0)
    part.unlink()
    raise PlainError(
        f"{dataset}: {file.path} arrives with other bytes than the hub lists (revision {revision}). A proxy may change "
        f"them; run the same line again later"
    )


class _Whole(Transfer):
    """From the bytes that a part has to all of the file's."""

    def __init__(
        self, client: httpx2.Client, out: BinaryIO, dataset: str, revision: str, file: HubFile, say_as: str
    ) -> None:
        super().__init__(client, dataset, revision, file, say_as)
        self.out, self.have, self.want = out, out.seek(0, os.SEEK_END), file.bytes

    def wanted_range(self) -> str | None:
        return f"bytes={self.have}-" if self.have else None

    def check(self, response: httpx2.Response) -> None:
        """Raise unless the answer brings the bytes after those that are here, or all of them."""
        if response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {self.have}-"):
            return
        if response.status_code == 416:  # what is here is no part of it
            self._empty()
        if response.status_code != 200:
            raise other_range(response)
        self._empty()

    def _empty(self) -> None:
        os.ftruncate(self.out.fileno(), 0)
        self.have = 0

    def write(self, block: bytes) -> None:
        # Past the file's own buffer, which would be written once more, and fail once more, when it is closed.
        left = memoryview(block)
        while left:
            try:
                written = os.write(self.out.fileno(), left)
            except OSError as error:
                error.filename = self.out.name
                raise
            self.have += written
            left = left[written:]

    def kept(self) -> str:
        return f": it goes on after the {self.have:,} of {self.want:,} bytes that are here"

"""A file of a hub repository on this machine: whole, checked, and fetched once, however often the fetching dies.

Files are kept by content, DRAFTMILL_HOME/hub/OWNER--NAME/HASH/FILE: a new commit fetches only what it changed. While
it is fetched it is FILE.part, locked, and goes on where it ended: a commit's file never changes, and its hash tells
in the end, so the part needs no ETag beside it. What huggingface_hub has in its cache is used from there.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urljoin, urlsplit

import httpx2
import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils._http import hf_raise_for_status

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.sources import hub, readers
from workflow_scripts.sources.hub import HubFile

TRIES = 8  # that bring no byte
FIRST_PAUSE = 1.0  # seconds; doubled with each such try
MOST_PAUSE = 60.0
MOST_ASKED_PAUSE = 600.0  # the hub's rate limits are over five minutes
REDIRECTS = 10
SAY_EVERY = 10.0  # seconds


def fetch(dataset: str, revision: str, file: HubFile, say_as: str) -> Path:
    """The path of a file of the dataset at the commit `revision`, with the bytes that the hub lists.

    `say_as` opens the lines of progress. Several processes may ask for one file: one fetches, the others wait.
    PlainError if it can't be had (a lock binds the run to it: gated counts as any other failure here), OSError from
    the disk.
    """
    if readers.ending(Path(file.path)) is None:
        raise PlainError(f"{dataset}: {file.path} is not of a kind that is read, and is not downloaded")
    cached = huggingface_hub.try_to_load_from_cache(dataset, file.path, revision=revision, repo_type="dataset")
    if isinstance(cached, str) and is_whole(Path(cached), file):
        return Path(cached)
    path = _place(dataset, revision, file)
    if is_whole(path, file):
        return path
    files.make_folder(path.parent)
    part = path.with_name(f"{path.name}.part")
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
    if huggingface_hub.is_offline_mode():
        raise PlainError(
            f"{dataset}: {file.path} is not on this machine, and HF_HUB_OFFLINE is set. Unset it, and run the same "
            f"line again"
        )
    for _ in range(2):
        with httpx2.Client(timeout=hub.TIMEOUT, follow_redirects=False) as client:
            _Transfer(client, out, dataset, revision, file, say_as).run()
        if is_whole(part, file):
            return
        say(f"{say_as}: {file.path} arrived with other bytes than the hub lists; fetching it again")
        os.ftruncate(out.fileno(), 0)
    part.unlink()
    raise PlainError(
        f"{dataset}: {file.path} arrives with other bytes than the hub lists (revision {revision}). A proxy may change "
        f"them; run the same line again later"
    )


class _TryAgain(Exception):
    """A try failed in a way that the next may not; `pause` is what the server asks for, in seconds."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class _Transfer:
    """From the bytes that a part has to all of them."""

    def __init__(
        self, client: httpx2.Client, out: BinaryIO, dataset: str, revision: str, file: HubFile, say_as: str
    ) -> None:
        self.client, self.out, self.file, self.say_as = client, out, file, say_as
        self.dataset, self.revision = dataset, revision
        self.url = huggingface_hub.hf_hub_url(
            dataset, file.path, repo_type="dataset", revision=revision, endpoint=hub.endpoint()
        )
        self.have = out.seek(0, os.SEEK_END)
        self.said = time.monotonic()

    def run(self) -> None:
        """Return when as many bytes are there as the file has, or more. PlainError when no try brings any."""
        most, failed = self.have, 0
        while self.have < self.file.bytes:
            try:
                self._try()
                if self.have >= self.file.bytes:
                    return
                error = _TryAgain("the transfer ended early")
            except _TryAgain as again:
                error = again
            except (errors.HfHubHTTPError, httpx2.HTTPError) as refused:
                if not hub.is_passing(refused):
                    raise PlainError(str(hub.explained(refused, self.dataset, self.revision))) from refused
                why = " ".join(str(refused).split()) or type(refused).__name__
                if isinstance(refused, errors.HfHubHTTPError):
                    why = f"the hub answers {refused.response.status_code}"
                error = _TryAgain(why, hub.asked_pause(refused))
            failed = 1 if self.have > most else failed + 1
            most = max(most, self.have)
            self._pause(failed, error)

    def _pause(self, failed: int, error: _TryAgain) -> None:
        what = f"{self.dataset}: {self.file.path}"
        if failed == TRIES:
            raise PlainError(
                f"{what} can't be downloaded: {error} (tried {TRIES} times). Run the same line again later: it goes on "
                f"after the {self.have:,} of {self.file.bytes:,} bytes that are here"
            )
        pause = max(min(FIRST_PAUSE * 2 ** (failed - 1), MOST_PAUSE), min(error.pause or 0.0, MOST_ASKED_PAUSE))
        say(f"{self.say_as}: {self.file.path}: {error}; going on in {pause:.0f} s")
        time.sleep(pause)

    def _try(self) -> None:
        """One request, through its redirects, and what it brings."""
        url = self.url
        for _ in range(REDIRECTS):
            with self.client.stream("GET", url, headers=self._headers(url)) as response:
                if response.has_redirect_location:
                    url = urljoin(url, response.headers["Location"])
                    continue
                self._check(response)
                self._append(response)
                return
        raise _TryAgain(f"more than {REDIRECTS} redirects")

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "User-Agent": "draftmill"}
        if self.have:
            headers["Range"] = f"bytes={self.have}-"
        token = hub.token()
        if token is not None and _origin(url) == _origin(hub.endpoint()):  # not to where large files are
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _check(self, response: httpx2.Response) -> None:
        """Raise unless the answer brings the bytes after those that are here, or all of them."""
        status = response.status_code
        if status == 416:  # what is here is no part of it
            self._empty()
        if status >= 400:
            if _origin(str(response.url)) == _origin(hub.endpoint()) and status != 416:
                response.read()
                hf_raise_for_status(response)
            # Where large files are, a link is good for some time only: the hub then gives another.
            raise _TryAgain(f"{response.url.host} answers {status}", hub.pause_of(response))
        if status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {self.have}-"):
            return
        if status != 200:
            raise _TryAgain(f"{response.url.host} answers {status}, with another range than was asked for")
        self._empty()

    def _empty(self) -> None:
        os.ftruncate(self.out.fileno(), 0)
        self.have = 0

    def _append(self, response: httpx2.Response) -> None:
        """Write what the answer brings, as it comes in: a cut one, too, leaves all that came."""
        for block in response.iter_raw():
            self._write(block)
            if self.have > self.file.bytes:
                return
            if time.monotonic() - self.said >= SAY_EVERY:
                self.said = time.monotonic()
                say(f"{self.say_as}: {self.file.path}: {self.have / 1e6:,.0f} of {self.file.bytes / 1e6:,.0f} MB")

    def _write(self, block: bytes) -> None:
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


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)

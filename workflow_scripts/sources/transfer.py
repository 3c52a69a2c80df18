"""Bytes of a hub's file over HTTP: tried again while that may help, and the token goes to the hub alone."""

import time
from abc import ABC, abstractmethod
from urllib.parse import urljoin, urlsplit

import httpx2
import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils._http import hf_raise_for_status

from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.sources import hub
from workflow_scripts.sources.hub import HubFile

TRIES = 8  # that bring no byte
FIRST_PAUSE = 1.0  # seconds; doubled with each such try
MOST_PAUSE = 60.0
MOST_ASKED_PAUSE = 600.0  # the hub's rate limits are over five minutes
REDIRECTS = 10
SAY_EVERY = 10.0  # seconds


class TryAgain(Exception):
    """A try failed in a way that the next may not; `pause` is what the server asks for, in seconds."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


def new_client() -> httpx2.Client:
    """A client for transfers, which follow redirects themselves."""
    return httpx2.Client(timeout=hub.TIMEOUT, follow_redirects=False)


class Transfer(ABC):
    """From the `have` bytes that are here to the `want` bytes of a file, or of a part of it."""

    have: int
    want: int

    def __init__(self, client: httpx2.Client, dataset: str, revision: str, file: HubFile, say_as: str) -> None:
        self.client, self.dataset, self.revision = client, dataset, revision
        self.file, self.say_as = file, say_as
        self._url = huggingface_hub.hf_hub_url(
            dataset, file.path, repo_type="dataset", revision=revision, endpoint=hub.endpoint()
        )
        self._said = time.monotonic()

    @abstractmethod
    def wanted_range(self) -> str | None:
        """The Range to ask for; None for the whole file."""

    @abstractmethod
    def check(self, response: httpx2.Response) -> None:
        """Raise TryAgain unless the answer, none of an error but 416, brings what is wanted."""

    @abstractmethod
    def write(self, block: bytes) -> None:
        """Take what came, and count it."""

    @abstractmethod
    def kept(self) -> str:
        """What of the bytes outlives a failure, as the end of a sentence; may be empty."""

    def run(self) -> None:
        """Return when as many bytes are here as wanted, or more. PlainError when no try brings any."""
        if huggingface_hub.is_offline_mode():
            raise PlainError(
                f"{self.dataset}: {self.file.path} is not on this machine, and HF_HUB_OFFLINE is set. Unset it, and "
                f"run the same line again"
            )
        most, failed = self.have, 0
        while self.have < self.want:
            try:
                self._try()
                if self.have >= self.want:
                    return
                error = TryAgain("the transfer ended early")
            except TryAgain as again:
                error = again
            except (errors.HfHubHTTPError, httpx2.HTTPError) as refused:
                if not hub.is_passing(refused):
                    raise PlainError(str(hub.explained(refused, self.dataset, self.revision))) from refused
                why = " ".join(str(refused).split()) or type(refused).__name__
                if isinstance(refused, errors.HfHubHTTPError):
                    why = f"the hub answers {refused.response.status_code}"
                error = TryAgain(why, hub.asked_pause(refused))
            failed = 1 if self.have > most else failed + 1
            most = max(most, self.have)
            self._pause(failed, error)

    def _pause(self, failed: int, error: TryAgain) -> None:
        if failed == TRIES:
            raise PlainError(
                f"{self.dataset}: {self.file.path} can't be downloaded: {error} (tried {TRIES} times). Run the same "
                f"line again later{self.kept()}"
            )
        pause = max(min(FIRST_PAUSE * 2 ** (failed - 1), MOST_PAUSE), min(error.pause or 0.0, MOST_ASKED_PAUSE))
        say(f"{self.say_as}: {self.file.path}: {error}; going on in {pause:.0f} s")
        time.sleep(pause)

    def _try(self) -> None:
        """One request, through its redirects, and what it brings."""
        url = self._url
        for _ in range(REDIRECTS):
            with self.client.stream("GET", url, headers=self._headers(url)) as response:
                if response.has_redirect_location:
                    url = urljoin(url, response.headers["Location"])
                    continue
                self._refuse_errors(response)
                self.check(response)
                self._take(response)
                return
        raise TryAgain(f"more than {REDIRECTS} redirects")

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "User-Agent": "draftmill"}
        wanted = self.wanted_range()
        if wanted is not None:
            headers["Range"] = wanted
        token = hub.token()
        if token is not None and _origin(url) == _origin(hub.endpoint()):  # not to where large files are
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _refuse_errors(self, response: httpx2.Response) -> None:
        if response.status_code < 400 or response.status_code == 416:
            return
        if _origin(str(response.url)) == _origin(hub.endpoint()):
            response.read()
            hf_raise_for_status(response)
        # Where large files are, a link is good for some time only: the hub then gives another.
        raise TryAgain(f"{response.url.host} answers {response.status_code}", hub.pause_of(response))

    def _take(self, response: httpx2.Response) -> None:
        """Write what the answer brings, as it comes in: a cut one, too, leaves all that came."""
        for block in response.iter_raw():
            self.write(block)
            if self.have > self.want:
                return
            if time.monotonic() - self._said >= SAY_EVERY:
                self._said = time.monotonic()
                say(f"{self.say_as}: {self.file.path}: {self.have / 1e6:,.0f} of {self.want / 1e6:,.0f} MB")


def other_range(response: httpx2.Response) -> TryAgain:
    """What to raise for an answer with other bytes than were asked for."""
    return TryAgain(f"{response.url.host} answers {response.status_code}, with another range than was asked for")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)

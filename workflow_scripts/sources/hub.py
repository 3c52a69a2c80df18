"""What a dataset's repository on the Hugging Face hub holds, at one commit: which files, of what size and hash.

A branch is looked up by the API alone, never by a cache: huggingface_hub's own download takes the commit that it has
seen last when the hub answers 429 or 5xx. Nothing is downloaded here but the dataset's card.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx2
import huggingface_hub
import yaml
from huggingface_hub import constants, errors
from huggingface_hub.utils._http import hf_raise_for_status

from workflow_scripts.errors import PlainError
from workflow_scripts.sources import layout, readers

COMMIT = re.compile("[0-9a-f]{40}")
HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
# `ratelimit: "api";r=0;t=55`: no request is left, and there are 55 seconds to the next window (the IETF's draft).
RATE_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
CARDS = ("README.md", ".huggingface.yaml")  # the later one's keys win, as in `datasets`
TIMEOUT = 30.0  # seconds of silence
KNOCK_SECONDS = 10.0
WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the second try, the third, ...
MOST_WAITED = 60.0  # seconds, for one answer
# The hub lists no more than some thousands of files with a repository's info; beyond that the tree is listed by pages.
LISTED_WITH_INFO = 1000

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its path there, and what its bytes must be."""

    path: str
    bytes: int
    sha256: str | None  # of large files (LFS); None of those that git holds itself
    blob_id: str | None  # git's hash of the file, or of the pointer to a large one


@dataclass(frozen=True)
class Resolved:
    """The files of a source, at one commit, in the order in which they are read."""

    dataset: str
    revision: str
    files: list[HubFile]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Resolved":
        return cls(value["dataset"], value["revision"], [HubFile(**file) for file in value["files"]])


class Unavailable(PlainError):
    """A dataset that can't be had, today or tomorrow, as things are; a source may then have substitutes."""

    def __init__(self, kind: Literal["gated", "missing", "script_only"], line: str) -> None:
        super().__init__(line)
        self.kind = kind


def resolve(
    dataset: str, config: str | None, split: str | list[str] | None, revision: str | None, files: list[str]
) -> Resolved:
    """The files of a dataset's split, or those that the globs `files` name, and the commit they are of.

    Unavailable if the dataset is gated, missing, or nothing but a script. PlainError if there is no such revision,
    config, split or file, with what there is; and if the hub can't be reached or keeps failing.
    """
    try:
        commit, held = _look_up(dataset, revision)
        card = {} if files else _card(dataset, commit, list(held))
    except (OSError, httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        raise explained(error, dataset, revision) from error
    names = sorted(held)
    chosen = (
        layout.choose_files(dataset, names, files)
        if files
        else layout.choose_split(dataset, names, card, config, split)
    )
    return Resolved(dataset, commit, [checked(dataset, held[name]) for name in chosen])


def _look_up(dataset: str, revision: str | None) -> tuple[str, dict[str, HubFile]]:
    """The commit of a revision, and the files that it holds, by path; some can be read, and may be."""
    api = huggingface_hub.HfApi(endpoint=endpoint())
    info = patiently(lambda: api.dataset_info(dataset, revision=revision, files_metadata=True, timeout=TIMEOUT))
    commit = str(info.sha)
    if COMMIT.fullmatch(commit) is None or (COMMIT.fullmatch(revision or "") and commit != revision):
        raise ValueError(f"it answers with the commit {commit}")
    held = {file.path: file for file in _list(api, dataset, info)}
    names = sorted(held)
    if not any(map(layout.may_hold_rows, names)):
        raise _no_rows(dataset, names)
    if info.gated:
        _check_access(api, dataset, commit, names)
    return commit, held


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT as it is now; huggingface_hub reads it when it is imported."""
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def unreachable() -> str | None:
    """Why the hub can't be reached, tried once; None where it answers, whatever that is, or is not to be asked."""
    try:
        huggingface_hub.get_session().head(endpoint(), timeout=KNOCK_SECONDS)
    except errors.OfflineModeIsEnabled:
        return None
    except httpx2.TransportError as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def token() -> str | None:
    """The token that goes to the hub, and nowhere else: HF_TOKEN, or that of `hf auth login`."""
    return None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else huggingface_hub.get_token()


def _list(api: huggingface_hub.HfApi, dataset: str, info: huggingface_hub.DatasetInfo) -> Iterable[HubFile]:
    siblings = info.siblings or []
    if len(siblings) < LISTED_WITH_INFO:
        for file in siblings:
            lfs = file.lfs and file.lfs.sha256
            yield HubFile(file.rfilename, file.size or 0, lfs or None, file.blob_id)
        return
    for entry in api.list_repo_tree(dataset, recursive=True, revision=info.sha, repo_type="dataset"):
        if isinstance(entry, huggingface_hub.RepoFile):
            yield HubFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)


def checked(dataset: str, file: HubFile) -> HubFile:
    """The file, if its name and hashes can be such: they become names on this machine's disk."""
    if any(part in ("", ".", "..") for part in file.path.split("/")) or not file.path.isprintable():
        raise PlainError(f"{dataset}: {file.path!r} is no name for a file; choose others as `files`")
    for digest in (file.sha256, file.blob_id):
        if digest is not None and HASH.fullmatch(digest) is None:
            raise PlainError(f"{dataset}: {endpoint()} lists {file.path} with {digest!r}, which is no hash")
    return file


def _no_rows(dataset: str, names: list[str]) -> PlainError:
    scripts = [name for name in names if name.endswith(".py") and "/" not in name]
    if scripts:
        return Unavailable(
            "script_only",
            f"{dataset} holds a script ({scripts[0]}) and no data files, and scripts are never run: look on the hub "
            f"for a copy with Parquet or JSON files, or try revision: refs/convert/parquet",
        )
    return PlainError(f"{dataset} holds no data files; files must end in {layout.ENDINGS}")


def _check_access(api: huggingface_hub.HfApi, dataset: str, commit: str, names: list[str]) -> None:
    """Ask for a file of a gated dataset, without its bytes: anybody may read the list."""
    name = next((name for name in names if readers.ending(Path(name)) is not None), names[0])
    url = huggingface_hub.hf_hub_url(dataset, name, repo_type="dataset", revision=commit, endpoint=endpoint())
    patiently(lambda: api.get_hf_file_metadata(url=url, timeout=TIMEOUT))


def _card(dataset: str, commit: str, names: list[str]) -> dict[str, Any]:
    """The YAML of the dataset's card at the commit; empty without one."""
    card: dict[str, Any] = {}
    for name in CARDS:
        if name not in names:
            continue
        text = patiently(partial(_text, dataset, commit, name))
        if name.endswith(".md"):
            block = re.match(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", text, re.DOTALL)
            text = block[1] if block else ""
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise PlainError(
                f"{dataset}: the YAML of its {name} can't be read ({' '.join(str(error).split())[:200]}); name its "
                f"files as `files`"
            ) from error
        if isinstance(value, dict):
            card.update(value)
    return card


def _text(dataset: str, commit: str, name: str) -> str:
    # Not huggingface_hub's own download: it has a cache to fall back on, and tries of its own, for minutes.
    url = huggingface_hub.hf_hub_url(dataset, name, repo_type="dataset", revision=commit, endpoint=endpoint())
    headers = {} if token() is None else {"Authorization": f"Bearer {token()}"}
    response = huggingface_hub.get_session().get(url, headers=headers, timeout=TIMEOUT)
    hf_raise_for_status(response)
    return response.content.decode("utf-8", "replace")


def patiently(call: Callable[[], Answer]) -> Answer:
    """What the hub answers, asked a few times while it is busy, fails or can't be reached; then the last error."""
    left = MOST_WAITED
    for wait in WAITS:
        try:
            return call()
        except (OSError, httpx2.HTTPError) as error:
            pause = max(wait, asked_pause(error) or 0.0)
            left -= pause
            if not is_passing(error) or left < 0:
                raise
            time.sleep(pause)
    return call()


def is_passing(error: Exception) -> bool:
    """Whether a later try may do better: timeouts, connections that fail, 429 and 5xx."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in (408, 425, 429) or error.response.status_code >= 500
    return isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.UnsupportedProtocol)


def asked_pause(error: Exception) -> float | None:
    """Seconds that the hub asks to wait: Retry-After, or when its rate limit resets."""
    response = getattr(error, "response", None)
    return None if response is None else pause_of(response)


def pause_of(response: httpx2.Response) -> float | None:
    """Seconds that an answer asks to wait."""
    after = response.headers.get("Retry-After", "").strip()
    if after.isdigit():
        return float(after)
    limit = RATE_LIMIT.search(response.headers.get("ratelimit", ""))
    return float(limit[1]) if limit else None


def explained(error: Exception, dataset: str, revision: str | None = None) -> PlainError:
    """What the hub's refusal or failure means, and what to do. Unavailable only if a later try won't do better."""
    if isinstance(error, errors.GatedRepoError):
        page = f"https://huggingface.co/datasets/{dataset}"
        line = f"{dataset} is gated: accept its terms at {page}, then set HF_TOKEN"
        if token() is not None:
            status = error.response.status_code
            line = f"{dataset} is gated, and your token was refused ({status}): accept the terms at {page} with the "
            line += "account of that token"
        return Unavailable("gated", line)
    if isinstance(error, errors.RevisionNotFoundError):
        return PlainError(f"{dataset} has no revision {revision!r}; give a branch, a tag or a full commit")
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return PlainError(f"{dataset} does not hold a file that it lists. Run the same line again later")
    if isinstance(error, errors.RepositoryNotFoundError):
        return Unavailable(
            "missing",
            f"there is no dataset {dataset} on the hub, or it is private: check the name; for a private one set "
            f"HF_TOKEN to a token that may read it",
        )
    if isinstance(error, errors.DisabledRepoError):
        return Unavailable("missing", f"the hub has disabled {dataset}: choose another dataset")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return PlainError(f"{dataset} can't be looked up: HF_HUB_OFFLINE is set. Unset it, and run the same line again")
    hub = endpoint()
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if is_passing(error):
            return PlainError(f"{dataset}: {hub} keeps answering {status}. Run the same line again later")
        if status in (401, 403):
            return PlainError(f"{dataset}: {hub} refuses your token ({status}). Renew HF_TOKEN, or unset it")
        return PlainError(f"{dataset}: {hub} answers {status}. Is HF_ENDPOINT the address of a hub?")
    if isinstance(error, errors.HFValidationError):
        return PlainError(f"{dataset} is no name of a dataset on the hub: {error}")
    if isinstance(error, httpx2.TransportError):
        why = " ".join(str(error).split()) or type(error).__name__
        return PlainError(
            f"{dataset}: {hub} can't be reached ({why}). Look at the network, and run the same line again"
        )
    if isinstance(error, OSError):
        raise error  # this machine's
    return PlainError(f"{dataset}: the answer of {hub} makes no sense: {error}")

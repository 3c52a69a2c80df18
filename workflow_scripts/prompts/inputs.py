"""What the manifest is drawn against: earlier prompts and benchmarks, as files here and objects in S3, by content.

lock.json holds them as `prompts`:

{"exclude": [INPUT, ...], "decontaminate": [INPUT, ...], "tokenizer": ... see lengths.py}

where INPUT is {"from": "results/first-1a2b3c4d", "files": [{name, bytes, sha256}]}, names relative to the folder that
is meant, or {"from": "s3://bucket/prefix/", "objects": [{name, key, bytes, etag}]}.
"""

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.sources.readers import below, ending

if TYPE_CHECKING:  # identity.py is what reads this module's plan
    from workflow_scripts.identity import ContentHashes

Input = dict[str, Any]

S3 = "s3://"
# Beside prompts and completions: sidecars, failures (no text, no first_id), the chunks' flag.
NOT_PROMPTS = re.compile(r"(^|/)(\d{5}(\.r\d+)?\.(json|failures\.jsonl\.zst)|split\.json|training\.json)$")
TEXTS = (".csv", ".txt")
# What lies beside the data of a dataset that was downloaded as a folder.
NOT_BENCHMARKS = re.compile(r"(^|/)((readme|license|notice|changelog)[^/]*|dataset_infos?\.json)$", re.IGNORECASE)


class LocalFile(NamedTuple):
    """A file that an entry of the config names; `name` is relative to the folder that the entry names."""

    name: str
    path: Path


def plan_inputs(config: Config, hashes: "ContentHashes") -> dict[str, list[Input]]:
    """What a plan knows of the inputs: local ones by content, S3 prefixes by their names. One line per mistake."""
    found: dict[str, list[Input]] = {}
    problems = []
    for key, entries, find in (
        ("exclude", config.prompts.exclude, excluded_files),
        ("decontaminate", config.prompts.decontaminate.files, benchmark_files),
    ):
        for entry in entries:
            try:
                found.setdefault(key, []).append(_plan_input(entry, find, hashes))
            except PlainError as error:
                problems.append(f"prompts.{key}: {error}")
    if problems:
        raise PlainError("\n".join(problems))
    return found


def _plan_input(entry: str, find: Callable[[str], list[LocalFile]], hashes: "ContentHashes") -> Input:
    if entry.startswith(S3):
        return {"from": entry}
    return {"from": entry, "files": _contents(find(entry), hashes)}


def _contents(found: Iterable[LocalFile], hashes: "ContentHashes") -> list[dict[str, Any]]:
    return [{"name": file.name, "bytes": file.path.stat().st_size, "sha256": hashes.of(file.path)} for file in found]


def identity_of(inputs: dict[str, list[Input]]) -> dict[str, Any]:
    """What of the inputs is in RUN: the content of local files, wherever they lie, and the names of S3 prefixes.

    Neither their order counts nor that one is named twice: they decide nothing about what is dropped.
    """
    found = {}
    for key, entries in inputs.items():
        different = {orjson.dumps(what): what for what in (entry.get("files", entry["from"]) for entry in entries)}
        found[key] = [different[each] for each in sorted(different)]
    return found


def excluded_files(entry: str) -> list[LocalFile]:
    """The files of earlier prompts that `entry` (a file, a folder or a glob of these) names; see `choose`.

    What a folder's files are read without is no mistake where a glob finds it, only where it is named.
    """
    found: dict[Path, LocalFile] = {}
    named = _exists(Path(entry))
    for path in _matches(entry):
        if (link := _moving_link(path)) is not None:
            if Path(entry).is_relative_to(link):
                raise PlainError(
                    f"{link} is a link that starts of runs move; name the run's own folder: "
                    f"{link.with_name(link.readlink().name)}"
                )
            continue
        if path.is_file():
            if not named and (ending(path) is None or NOT_PROMPTS.search(path.as_posix())):
                continue
            if ending(path) is None:
                raise PlainError(f"{path} can't be read; earlier prompts are .parquet, .jsonl or .json files")
            found.setdefault(path.resolve(), LocalFile(path.name, path))
            continue
        names = _below(path)
        for name in choose(names, str(path)):
            found.setdefault((path / name).resolve(), LocalFile(name, path / name))
    if not found:
        raise PlainError(f"{entry} holds no prompts: no manifest.parquet, and no .parquet, .jsonl or .json file")
    return sorted(found.values())


def _moving_link(path: Path) -> Path | None:
    """The link results/NAME that a path is or goes through; None if it goes through none."""
    for link in (path, *path.parents):
        if link.is_symlink() and re.fullmatch(rf"{re.escape(link.name)}-[0-9a-f]{{8}}", str(link.readlink())):
            return link
    return None


def check_own_run(entries: Iterable[str], run: Path) -> None:
    """PlainError if an entry of `exclude` would find the run's own folder once it is there: RUN would then change."""
    for entry in entries:
        if not entry.startswith(S3) and _finds(entry, run.resolve()):
            raise PlainError(
                f"prompts.exclude: {entry} would find this run too ({run}), and so make each start another run; name "
                f"the folders of earlier runs one by one"
            )


def _finds(entry: str, run: Path) -> bool:
    """Whether an entry names a run's folder, one above it, or what is excluded by in it."""
    if _exists(Path(entry)):
        return run.is_relative_to(Path(entry).resolve())
    parts = Path(os.path.abspath(entry)).parts  # noqa: PTH100
    folders = list(takewhile(lambda part: not glob.has_magic(part), parts))
    pattern = [*map(glob.escape, Path(*folders).resolve().parts), *parts[len(folders) :]]  # `run` goes through no link
    inside = ("manifest.parquet", "prompts", "prompts/00000.jsonl.zst", "completions", "completions/00000.jsonl.zst")
    return any(_names(pattern, path.parts) for path in (run, *run.parents, *(run / name for name in inside)))


def _names(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a pattern, as glob reads it, names a path."""
    if not pattern:
        return not parts
    if pattern[0] == "**" and _names(pattern[1:], parts):
        return True
    if not parts or not fnmatchcase(parts[0], pattern[0]):
        return False
    return _names(pattern if pattern[0] == "**" else pattern[1:], parts[1:])


def benchmark_files(entry: str) -> list[LocalFile]:
    """The benchmark files that `entry` (a file, a folder or a glob of these) names; of a glob those of a folder."""
    found = []
    named = _exists(Path(entry))
    for path in _matches(entry):
        if path.is_file():
            if not named and (not _is_benchmark(path.name) or NOT_BENCHMARKS.search(path.as_posix())):
                continue
            if not _is_benchmark(path.name):
                raise PlainError(f"{path} can't be read; benchmarks are .jsonl, .json, .parquet, .csv or .txt files")
            found.append(LocalFile(path.name, path))
        else:
            names = (name for name in _below(path) if _is_benchmark(name) and not NOT_BENCHMARKS.search(name))
            found += [LocalFile(name, path / name) for name in names]
    if not found:
        raise PlainError(f"{entry} holds no .jsonl, .json, .parquet, .csv or .txt file")
    return sorted(found)


def _is_benchmark(name: str) -> bool:
    return name.lower().endswith(TEXTS) or ending(Path(name)) is not None


def _matches(entry: str) -> list[Path]:
    # A name that holds *, ? or [ is meant as itself. Path.glob would find hidden files too.
    path = Path(entry)
    found = [path] if _exists(path) else [Path(name) for name in glob.glob(entry, recursive=True)]  # noqa: PTH207
    if not found:
        raise PlainError(f"{entry}: no such file or folder, and none matches it as a pattern (from {Path.cwd()})")
    return sorted(found)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # longer than a name may be, a NUL in it
        return False


def _below(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in below(folder))


def choose(names: Iterable[str], where: str) -> list[str]:
    """Of the files below a folder or an S3 prefix, those that tell which prompts were taken, sorted.

    A run counts by its manifest.parquet: every prompt that it took, answered or not; nothing else of it is read.
    PlainError for a run that has none, for sources' shards, and where there is nothing.
    """
    names = sorted(names)
    there = set(names)
    folders = {name.rpartition("/")[0] for name in names}
    runs = {folder for folder in folders if _in(folder, "manifest.parquet") in there}
    for folder in folders - runs:
        if _in(folder, "run.yaml") in there or _in(folder, "owner.json") in there:
            raise PlainError(
                f"{_in(where.rstrip('/'), folder).rstrip('/')} is a run's folder without manifest.parquet: no prompt "
                f"was taken there yet; leave it out, or let that run make its manifest first (`prompts`)"
            )
        if {_in(folder, "prompts.parquet"), _in(folder, "rejects.jsonl.zst")} <= there:
            raise PlainError(
                f"{_in(where.rstrip('/'), folder)} is a source's shard, which holds all its prompts, taken or not; "
                f"name a run's folder"
            )
    chosen = []
    for name in names:
        above = name.rpartition("/")[0]
        run = next((each for each in _and_above(above) if each in runs), None)
        wanted = name == _in(run, "manifest.parquet") if run is not None else not NOT_PROMPTS.search(name)
        if wanted and ending(Path(name)) is not None:
            chosen.append(name)
    if not chosen:
        raise PlainError(f"{where} holds no prompts: no manifest.parquet, and no .parquet, .jsonl or .json file")
    return chosen


def _in(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _and_above(folder: str) -> Iterator[str]:
    """The folder and all above it, the outermost first."""
    parts = folder.split("/") if folder else []
    return ("/".join(parts[:count]) for count in range(len(parts) + 1))


def checked_files(
    key: str, entry: str, recorded: Iterable[Input], find: Callable[[str], list[LocalFile]], hashes: "ContentHashes"
) -> list[LocalFile]:
    """The files of a local input, where the config says. PlainError unless one was recorded with these names and bytes.

    The record may be another machine's, where the same files lie elsewhere, or of a config in another order. Names and
    bytes are in RUN, so that a start with other ones is another run.
    """
    remedy = "Put the old ones back, or run the same line again: with the new ones it starts a new run"
    try:
        found = find(entry)
    except PlainError as error:
        raise PlainError(f"prompts.{key}: {error}. The run began with it: put it back") from error
    held = _contents(found, hashes)
    known = [was["files"] for was in recorded if "files" in was]
    if held in known:
        return found
    for files in known:
        if [file["name"] for file in files] == [file["name"] for file in held]:
            changed = next(file.path for file, now, was in zip(found, held, files, strict=True) if now != was)
            raise PlainError(f"prompts.{key}: {changed} has changed since this run began. {remedy}")
    raise PlainError(f"prompts.{key}: {entry} holds other files than when this run began. {remedy}")

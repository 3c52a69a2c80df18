"""Which files of a hub repository belong to a config and a split: its card's `configs`, or the files' names.

The rules are those of `datasets` (its documentation: "Structure your repository"), by its own code, over the list of
names that the hub gave: nothing is downloaded. What `datasets` makes of the files does not matter here; where it
passes over files of a kind that it did not choose, here a file that can't be read is an error.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workflow_scripts.errors import PlainError
from workflow_scripts.sources import readers

Splits = dict[str, list[str]]

# Endings of rows in kinds of files that are not read. They count when splits are looked for, so that a repository of
# train.csv and test.jsonl does not pass for one that has a test split only.
UNREAD = {"csv", "tsv", "arrow", "feather", "avro", "orc", "lance", "xml", "h5", "hdf5", "npy", "npz", "pkl", "pickle"}
UNREAD |= {"zip", "tar", "tgz", "7z", "bz2", "xz", "lz4", "gz", "zst"}
SHOWN = 10  # names in a message
ENDINGS = ", ".join((*readers.PARQUET, *readers.JSON))


def choose_files(dataset: str, names: list[str], patterns: list[str]) -> list[str]:
    """The files that globs over a repository's names mean, sorted; PlainError for one that means none."""
    with _as_folder(names) as folder:
        found: set[str] = set()
        for pattern in patterns:
            matches = _matches(dataset, pattern, folder)
            if not matches:
                why = "can't be read" if pattern in names else f"is not in {dataset}; it holds {_some(names)}"
                raise PlainError(f"files: {pattern} {why}. Files must end in {ENDINGS}")
            found.update(matches)
    return _readable(dataset, sorted(found))


def choose_split(
    dataset: str, names: list[str], card: dict[str, Any], config: str | None, split: str | list[str] | None
) -> list[str]:
    """The files of a config's splits: sorted, splits in the order asked, no file twice.

    `card` is the YAML of the repository's README.md. Without `config` the default one is meant, without `split`
    `train` or the only one. PlainError lists what there is.
    """
    configs, default = _configs(dataset, card)
    name = config or default
    if name is None:
        raise PlainError(
            f"{dataset} has several configs, and none is marked as its default; name one as `config`: "
            f"{', '.join(configs)}"
        )
    if name not in configs:
        raise PlainError(f"{dataset} has no config {name!r}; it has {', '.join(configs)}")
    splits = _splits(dataset, names, configs[name])
    of = f"{dataset} (config {name})" if len(configs) > 1 else dataset
    if split is None and len(splits) > 1 and "train" not in splits:
        raise PlainError(f"{of} has no split `train`; name one or more of its splits as `split`: {', '.join(splits)}")
    if split is None:
        split = "train" if "train" in splits else next(iter(splits))
    chosen: list[str] = []
    for asked in [split] if isinstance(split, str) else split:
        if asked not in splits:
            raise PlainError(f"{of} has no split {asked!r}; it has {', '.join(splits)}")
        if not splits[asked]:
            raise PlainError(
                f"{of}: its card gives the split {asked!r} files that it does not hold, or that can't be read; name "
                f"them as `files`. It holds {_some(names)}"
            )
        chosen += splits[asked]
    return _readable(of, list(dict.fromkeys(chosen)))


def _configs(dataset: str, card: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The configs of a card, by name, and the name of the default one. A card without any has `default`."""
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCardData

    wanted = ("config_name", "data_files", "data_dir", "default")
    configs = card.get("configs")
    if isinstance(configs, list):
        configs = [
            {key: config[key] for key in wanted if key in config} if isinstance(config, dict) else config
            for config in configs
        ]
    try:
        found = MetadataConfigs.from_dataset_card_data(DatasetCardData(configs=configs))
        if not found:
            return {"default": {}}, "default"
        return {str(name): config for name, config in found.items()}, found.get_default_config_name()
    except (ValueError, TypeError) as error:
        raise PlainError(
            f"{dataset}: the configs of its card can't be used; name its files as `files` instead "
            f"({' '.join(str(error).split())[:200]})"
        ) from error


def _splits(dataset: str, names: list[str], config: dict[str, Any]) -> Splits:
    """The splits of one config; PlainError if there are none."""
    from datasets.data_files import EmptyDatasetError, get_data_patterns, sanitize_patterns

    with _as_folder(names) as folder:
        base = folder
        if config.get("data_dir"):
            base = f"{folder}/{_plain(dataset, str(config['data_dir'])).strip('/')}"
        try:
            if config.get("data_files") is not None:
                patterns = sanitize_patterns(config["data_files"])
            else:
                patterns = get_data_patterns(base)
        except (EmptyDatasetError, ValueError) as error:
            raise PlainError(
                f"{dataset}: no splits can be told from its names; name its files as `files`. It holds {_some(names)}"
            ) from error
        return {
            str(split): sorted({name for pattern in each for name in _matches(dataset, pattern, folder, base)})
            for split, each in patterns.items()
        }


@contextmanager
def _as_folder(names: Iterable[str]) -> Iterator[str]:
    """A folder in memory, as fsspec's URL, with empty files of these names; only those that may hold rows."""
    from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

    root = f"/{uuid.uuid4().hex}"
    # Into its store directly: its own ways to write and delete look through all files for each.
    held = {f"{root}/{name}": MemoryFile(path=f"{root}/{name}") for name in names if may_hold_rows(name)}
    MemoryFileSystem.store.update(held)
    try:
        yield f"memory:/{root}"
    finally:
        for path in held:
            del MemoryFileSystem.store[path]


def _matches(dataset: str, pattern: str, folder: str, base: str | None = None) -> list[str]:
    from datasets.data_files import resolve_pattern

    try:
        found = resolve_pattern(_plain(dataset, pattern), base_path=base or folder)
    except FileNotFoundError:
        return []
    start = folder.removeprefix("memory:/") + "/"
    return [url.removeprefix("memory://").removeprefix(start) for url in found]


def _plain(dataset: str, pattern: str) -> str:
    """A pattern that stays inside the repository: a card could name any file of this machine, or any address."""
    if "://" in pattern or "::" in pattern or pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise PlainError(f"{dataset}: {pattern!r} does not name files inside of it; name its files as `files`")
    return pattern


def may_hold_rows(name: str) -> bool:
    """Whether a file can be read, or is of a kind that holds rows and can't be."""
    path = Path(name)
    return readers.ending(path) is not None or not UNREAD.isdisjoint(path.name.lower().split(".")[1:])


def _readable(of: str, names: list[str]) -> list[str]:
    for name in names:
        if readers.ending(Path(name)) is None:
            raise PlainError(
                f"{of}: {name} can't be read; files must end in {ENDINGS}. Name others as `config` and "
                f"`split`, or as `files`"
            )
    return names


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return (", ".join(sorted(names)[:SHOWN]) or "no file") + more

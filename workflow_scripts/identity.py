"""What a run and a shard *are*: hashes of everything that decides their content, and of nothing else."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.config import Config, Reading, Source
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import inputs
from workflow_scripts.serving.flags import content_flags
from workflow_scripts.sources import NORMALIZER_VERSION
from workflow_scripts.sources.readers import resolve

BLOCK = 1 << 20
BLOCKS = 64
WEIGHTS = (".safetensors",)
# With those of TEMPLATES, all that prompts/tokenizer.py binds is among them.
SIDE_FILES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
TRAINING_FORM = 2  # another number where equal completions make other training files than before
TEMPLATES = "additional_chat_templates"


class ContentHashes:
    """sha256 of local files, remembered in the cache folder by real path, size, mtime and inode.

    `sampled` hashes 64 evenly spaced 1 MiB blocks, for weights that are too big to read at every start.
    """

    def __init__(self) -> None:
        self._path = files.cache_home() / "content-hashes.json"
        try:
            self._known: dict[str, str] = orjson.loads(self._path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            self._known = {}
        self._changed = False

    def of(self, path: Path, *, sampled: bool = False) -> str:
        """Hex sha256 of a file (or of its blocks)."""
        stat = path.stat()
        key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino} {'sampled' if sampled else 'whole'}"
        if key not in self._known:
            self._known[key] = _sha256_blocks(path) if sampled else files.sha256_file(path)
            self._changed = True
        return self._known[key]

    def save(self) -> None:
        """Keep what was hashed; a cache that can't be written only costs time."""
        if self._changed:
            try:
                files.write_json(self._path, self._known)
            except OSError:
                pass


def _sha256_blocks(path: Path) -> str:
    size = path.stat().st_size
    if size <= BLOCK * BLOCKS:
        return files.sha256_file(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(BLOCKS):
            file.seek((size - BLOCK) * number // (BLOCKS - 1))
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def digest(value: Any, length: int = 12) -> str:
    """The first hex digits of the sha256 of a JSON value with sorted keys."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:length]


def source_files(name: str, source: Source, hashes: ContentHashes) -> list[dict[str, Any]]:
    """A local source's files as lock.json records them: `[{name, bytes, sha256}]`, in reading order, without folders.

    None of a dataset on the hub, which a plan does not ask. PlainError, with the source's name, where the path matches
    nothing.
    """
    if source.path is None:
        return []
    try:
        paths = resolve(source.path)
    except PlainError as error:
        raise PlainError(f"sources.{name}.path: {error}") from error
    return [{"name": path.name, "bytes": path.stat().st_size, "sha256": hashes.of(path)} for path in paths]


def shard_name(name: str, reading: Reading, found: list[dict[str, Any]]) -> str:
    """SOURCE-HASH: what decides a shard's bytes. `take` is not among it: a shard holds all usable prompts.

    A dataset of the hub counts by its revision as configured: a shard of `main` is used again whatever main is by then.
    """
    what = reading.model_dump(exclude_defaults=True, include=set(Reading.model_fields) - {"path"})
    return f"{name}-{digest([NORMALIZER_VERSION, what, found])}"


def model_identity(path: str, revision: str | None, hashes: ContentHashes) -> dict[str, Any]:
    """A local model, or tokenizer, by content, any other by name and revision."""
    folder = Path(path)
    if not folder.is_dir():
        return {"path": path, "revision": revision}
    found = {}
    for file in sorted(folder.iterdir()):
        if file.suffix in WEIGHTS:
            found[file.name] = [file.stat().st_size, hashes.of(file, sampled=True)]
        elif file.suffix in SIDE_FILES:
            found[file.name] = [file.stat().st_size, hashes.of(file)]
    for file in sorted((folder / TEMPLATES).glob("*.jinja")):
        found[f"{TEMPLATES}/{file.name}"] = [file.stat().st_size, hashes.of(file)]
    return {"files": found}


def run_identity(
    config: Config,
    found: dict[str, list[dict[str, Any]]],
    hashes: ContentHashes,
    drawn_against: dict[str, list[inputs.Input]] | None = None,
) -> dict[str, Any]:
    """Everything that RUN hashes, as JSON. Keys at their default are left out.

    The order of sources, substitutes and `fill` counts, so that these are lists of [name, what it says].
    `drawn_against` is what inputs.plan_inputs found.
    """
    sources = [[name, _source_identity(source, found[name])] for name, source in config.sources.items()]
    # `allow_short` lets a run go on; it decides nothing about what the run holds. Earlier prompts and benchmarks count
    # by what they hold, below.
    decontaminate = config.prompts.decontaminate.model_copy(update={"files": []})
    prompts = {"allow_short": False, "exclude": [], "decontaminate": decontaminate}
    deciding = config.model_copy(update={"prompts": config.prompts.model_copy(update=prompts)})
    sections = deciding.model_dump(
        exclude_defaults=True,
        include={"name", "prompts", "chunks", "sampling"},
        exclude={"prompts": {"fill": {"__all__": {"path"}}}},
    )
    if config.prompts.fill:
        sections["prompts"]["fill"] = _in_order(sections["prompts"]["fill"])
    model = model_identity(config.model.path, config.model.revision, hashes)
    if config.model.tokenizer is not None:
        model |= {"tokenizer": model_identity(config.model.tokenizer, None, hashes)}
    against = {"drawn_against": inputs.identity_of(drawn_against)} if drawn_against else {}
    return (
        sections
        | against
        | {
            "sources": sources,
            "model": model,
            "args": _args_identity(config, hashes),
        }
    )


def _source_identity(source: Source, found: list[dict[str, Any]]) -> dict[str, Any]:
    """What of a source is in RUN: all that it says but where its local files lie; their content instead."""
    said = source.model_dump(
        exclude_defaults=True, exclude={"path": True, "use": True, "substitutes": {"__all__": {"path"}}}
    )
    if source.substitutes:
        said["substitutes"] = _in_order(said["substitutes"])
    return said | ({"files": found} if source.path is not None else {})


def _in_order(mapping: dict[str, Any]) -> list[list[Any]]:
    return [[name, value] for name, value in mapping.items()]


def _args_identity(config: Config, hashes: ContentHashes) -> dict[str, Any]:
    """The content flags; a chat template that is a file here counts by its content."""
    flags = content_flags(config.servers.args)
    template = flags.get("chat-template")
    if isinstance(template, str) and Path(template).is_file():
        flags["chat-template"] = {"sha256": hashes.of(Path(template))}
    return flags


def run_name(identity: dict[str, Any]) -> str:
    """RUN."""
    return f"{identity['name']}-{digest(identity, 8)}"


def training_hash(config: Config, redrives: Sequence[str] = ()) -> str:
    """The HASH of training/HASH: the export of another redrive is another one. That of recorded answers says so."""
    what = config.training.model_dump(exclude_defaults=True)
    recorded = "recorded-" if config.training.answers == "recorded" else ""
    return recorded + digest([TRAINING_FORM, what, *redrives], 8)


def publish_hash(config: Config) -> str:
    """The HASH of published/HASH: where the objects go."""
    where = config.publish.model_dump(include={"store", "bucket", "prefix", "endpoint_url"})
    return digest([where, training_hash(config)], 8)

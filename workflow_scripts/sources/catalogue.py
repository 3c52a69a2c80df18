"""The known datasets: catalogue.yaml, and what `use: NAME` in a config stands for. Run as a module, it lists them."""

import argparse
import copy
import difflib
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say

PATH = Path(__file__).with_name("catalogue.yaml")
HOW_TO_LIST = "`uv run python -m workflow_scripts.sources.catalogue` lists what is"
NOT_READING = ("use", "take", "substitutes")  # what a source says beside how its rows are read
OF_HUB = ("dataset", "config", "split", "revision", "files")


class Known(BaseModel):
    """A mapping of catalogue.yaml: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Candidate(Known):
    """A repository that an entry without a known one could mean."""

    dataset: str
    rows: int | None = None
    splits: list[str] = Field(default_factory=list)
    note: str | None = None


class Entry(Known):
    """A known dataset. `read` holds keys of config.Reading; without its `dataset` the user must give one."""

    read: dict[str, Any]
    licence: str
    gated: bool | Literal["auto", "manual"] = False  # who grants access; true: gated, and that isn't known
    rows: int | None = None
    bytes: int | None = None  # of the download
    quirks: list[str] = Field(default_factory=list)
    overlaps: list[str] = Field(default_factory=list)  # entries that hold some of the same rows
    candidates: list[Candidate] = Field(default_factory=list)


@cache
def load() -> dict[str, Entry]:
    """The catalogue, by name, in the file's order."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast, where there is one
    values = yaml.load(PATH.read_text(encoding="utf-8"), Loader=loader)  # both are safe loaders
    return {name: Entry.model_validate(value) for name, value in values.items()}


def expand(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The config's values with every catalogue name replaced by what it stands for.

    `sources.NAME.use`: the entry's values, under those that the config gives. `substitutes` and `prompts.fill`, lists
    of names, become mappings of names to values; a name of one of the config's own sources means that one. Where they
    are mappings, `use` stands in their values as in a source's. PlainError for a name that is neither. Expanded values
    expand to themselves; what has the wrong type stays, for the typed config to refuse.
    """
    problems: list[str] = []
    expanded = dict(values)
    sources, prompts = values.get("sources"), values.get("prompts")
    own: dict[str, dict[str, Any]] = {}
    if isinstance(sources, dict):
        expanded["sources"] = {
            name: _source(source, f"{where}: sources.{name}", problems) if isinstance(source, dict) else source
            for name, source in sources.items()
        }
        for name, source in expanded["sources"].items():
            if isinstance(source, dict):
                own[name] = {key: value for key, value in source.items() if key not in NOT_READING}
        for name, source in expanded["sources"].items():
            if isinstance(source, dict) and "substitutes" in source:
                place = f"{where}: sources.{name}.substitutes"
                source["substitutes"] = _listed(source["substitutes"], own, place, problems)
    if isinstance(prompts, dict) and "fill" in prompts:
        expanded["prompts"] = prompts | {"fill": _listed(prompts["fill"], own, f"{where}: prompts.fill", problems)}
    if problems:
        raise PlainError("\n".join(problems))
    return expanded


def _source(source: dict[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    source = dict(source)
    name = source.get("use")
    if not isinstance(name, str):
        return source
    entry = _entry(name, f"{where}.use", problems)
    if entry is None:
        return source
    if not entry.read.get("dataset") and not source.get("dataset") and not source.get("path"):
        problems.append(f"{where}.use: {_which(name, entry)}; say it with `dataset:` beside `use:`")
        return source
    return _under(entry.read, source)


def _under(read: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """The entry's values under the source's own, without those that its place for the rows makes void."""
    given = {key for key in ("path", *OF_HUB) if source.get(key)}
    void: set[str] = set()
    if "path" in given:
        void.update(OF_HUB)
    if "files" in given:
        void.update(("config", "split"))
    if given & {"config", "split"}:
        void.add("files")
    if "dataset" in given and source["dataset"] != read.get("dataset"):
        void.add("revision")  # a mirror has commits of its own
    merged = {key: copy.deepcopy(value) for key, value in read.items() if key not in void} | source
    for key in ("columns", "where"):
        if isinstance(read.get(key), dict) and isinstance(source.get(key), dict):
            merged[key] = read[key] | source[key]
    return merged


def _listed(names: Any, own: dict[str, dict[str, Any]], where: str, problems: list[str]) -> Any:
    """What may stand in, by name: of a list the sources and entries that it names, of a mapping its values."""
    if isinstance(names, dict):
        return {name: _reading(value, f"{where}.{name}", problems) for name, value in names.items()}
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return names
    readings = {}
    for name in names:
        if name in own:
            readings[name] = copy.deepcopy(own[name])
            continue
        entry = _entry(name, where, problems)
        if entry is None:
            continue
        if "dataset" in entry.read:
            readings[name] = copy.deepcopy(entry.read)
        else:
            problems.append(f"{where}: {_which(name, entry)}; write a mapping, {name}: {{dataset: ...}}, not a list")
    return readings


def _reading(value: Any, where: str, problems: list[str]) -> Any:
    """A stand-in's values with those of the entry that it uses; the typed one has no `use`."""
    if not isinstance(value, dict) or not isinstance(value.get("use"), str):
        return value
    return {key: found for key, found in _source(value, where, problems).items() if key != "use"}


def _entry(name: str, where: str, problems: list[str]) -> Entry | None:
    entry = load().get(name)
    if entry is None:
        problems.append(f"{where}: {_unknown(name)}")
    return entry


def _unknown(name: str) -> str:
    known = load()
    same = [other for other, entry in known.items() if entry.read.get("dataset", "").lower() == name.lower()]
    near = same or difflib.get_close_matches(name.lower().replace("-", "_"), known, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{name!r} is not in the catalogue; {meant}{HOW_TO_LIST}"


def _which(name: str, entry: Entry) -> str:
    """That an entry's dataset isn't known, and which ones it could be."""
    found = [f"{one.dataset} ({one.rows:,} rows)" if one.rows else one.dataset for one in entry.candidates]
    return f"which dataset {name} is isn't known; it could be {', '.join(found)}"


def main() -> None:
    """Print the catalogue, or one of its entries."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.sources.catalogue",
        description="The datasets that a config may name: `sources: {mine: {use: NAME}}`.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show all that is known of this one")
    name = parser.parse_args().name
    if name is None:
        say(listing())
        return
    if name not in load():
        raise PlainError(_unknown(name))
    shown = load()[name].model_dump(exclude_defaults=True)
    say(yaml.safe_dump({name: shown}, sort_keys=False, allow_unicode=True, width=100).rstrip())


def listing() -> str:
    """The catalogue as a table: name, rows, whether it is gated and by whom, licence."""
    lines = [f"{'name':<31}{'rows':>11}  {'gated':<7} licence"]
    for name, entry in load().items():
        rows = "" if entry.rows is None else f"{entry.rows:,}"
        gated = entry.gated if isinstance(entry.gated, str) else "yes" if entry.gated else ""
        lines.append(f"{name:<31}{rows:>11}  {gated:<7} {entry.licence}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_job(main)

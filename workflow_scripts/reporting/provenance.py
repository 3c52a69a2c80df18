"""Of what a run was made: datasets with revisions and licences, versions, the servers' flags, the config."""

import platform
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import yaml

from workflow_scripts import files
from workflow_scripts.publishing import card
from workflow_scripts.records import Sidecar
from workflow_scripts.reporting.counted import drawn
from workflow_scripts.reporting.plain_text import visible
from workflow_scripts.run import Run

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
PACKAGES = ("snakemake", "transformers", "tokenizers", "datasets", "polars", "pyarrow", "zstandard")


def provenance(run: Run, sidecars: list[Sidecar]) -> dict[str, Any]:
    """{"datasets": rows, "versions": {name: version}, "content": JSON, "speed": [{flag: value}], "config": YAML}."""
    content: dict[str, Any] = {}
    speed: list[dict[str, Any]] = []
    for sidecar in sidecars:
        content = content or sidecar["fingerprint"]["content"]
        speed += [flags for flags in sidecar["fingerprint"]["speed"] if flags not in speed]
    return {
        "datasets": _datasets(run),
        "versions": _versions(speed),
        "content": _json(content),
        "speed": [{name: visible(str(value)) for name, value in flags.items()} for flags in speed],
        "config": visible((run.folder / "run.yaml").read_text(encoding="utf-8")),
        "sampling": yaml.safe_dump(run.config.sampling.model_dump(exclude_unset=True), sort_keys=False).strip(),
    }


def _datasets(run: Run) -> list[dict[str, Any]]:
    """A row for each source and stand-in that prompts were taken from or asked of."""
    locked = files.read_json(run.lock, "sources")["sources"]
    stand_ins = run.folder / "stand_ins.json"
    resolved = locked | (files.read_json(stand_ins) if stand_ins.exists() else {})
    rows = []
    for shard in drawn(run):
        name = shard["source"]
        entry = resolved.get(name)
        entry = entry if isinstance(entry, dict) else {}
        held = ", ".join(str(file.get("name") or file.get("path")) for file in entry.get("files", [])[:3])
        rows.append(
            {
                "source": name,
                "dataset": visible(str(entry.get("dataset") or card.dataset(run.config, name))),
                "revision": visible(str(entry.get("revision") or "")) or "by content",
                "files": visible(held),
                "licence": visible(card.licence(run.config, name)),
                "taken": shard["prompts"],
                "dropped": ", ".join(f"{n:,} {reason}" for reason, n in shard["dropped"].items()) or "-",
                "unavailable": visible((shard.get("unavailable") or {}).get("reason", "")),
            }
        )
    return rows


def _versions(speed: list[dict[str, Any]]) -> dict[str, str]:
    engines = sorted({str(flags["version"]) for flags in speed if "version" in flags})
    draftmill = tomllib.loads(PROJECT.read_text())["project"]["version"]
    found = {"draftmill": draftmill, "sglang": ", ".join(engines) or "-", "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in PACKAGES}


def _json(value: Any) -> str:
    return visible(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

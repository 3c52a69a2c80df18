"""Where a source's rows come from, looked up once: what lock.json, or manifest.json for a stand-in, says of it.

{"shard": "sources/NAME-HASH", "files": [{name, bytes, sha256}]}              local files, by content
{"shard": ..., "dataset": ..., "revision": ..., "files": [{path, bytes, ...}]}  a commit of the hub
{"shard": ..., "unavailable": {"kind": ..., "reason": ...}}                     gated, missing or script-only
"""

from pathlib import Path
from typing import Any

from workflow_scripts.config import Config, Reading
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import shard_name

Locked = dict[str, Any]


def lock_dataset(name: str, reading: Reading, results: Path) -> Locked:
    """What a dataset of the hub is now, or was when its newest shard was made: that one is used again without a look.

    A shard's folder names its commit too, so that runs which are bound to different ones never share it. A dataset
    that can't be read comes as unavailable. PlainError where the hub can't be asked.
    """
    from workflow_scripts.sources.shard import finished  # pyarrow is slow to import, and a plan doesn't need it

    shard = f"sources/{shard_name(name, reading, [])}"
    made = sorted(results.glob(f"{shard}-*/stats.json"), key=lambda stats: stats.stat().st_mtime, reverse=True)
    for folder in [stats.parent for stats in made]:
        if stats := finished(folder):
            return {"shard": f"sources/{folder.name}", **stats["origin"]}
    from workflow_scripts.sources import hub  # the hub's libraries take a second that a plan doesn't need

    assert reading.dataset is not None
    try:
        found = hub.resolve(reading.dataset, reading.config, reading.split, reading.revision, reading.files)
    except hub.Unavailable as why:
        return {"shard": shard, "unavailable": {"kind": why.kind, "reason": str(why)}}
    return {"shard": f"{shard}-{found.revision[:8]}", **found.to_json()}


def lock_again(config: Config, locked: dict[str, Locked], results: Path) -> dict[str, Locked]:
    """Of the sources that could not be read, those that can be now: their terms may have been accepted since."""
    again = {
        name: lock_dataset(name, config.sources[name], results)
        for name, entry in locked.items()
        if "unavailable" in entry
    }
    return {name: entry for name, entry in again.items() if "unavailable" not in entry}


def lock_sources(config: Config, planned: dict[str, Locked], results: Path) -> dict[str, Locked]:
    """What lock.json says of a run's sources. PlainError, a line for each source that can't be had."""
    locked, problems = {}, []
    for name, source in config.sources.items():
        try:
            locked[name] = planned[name] if source.dataset is None else lock_dataset(name, source, results)
        except PlainError as error:
            problems.append(f"sources.{name}: {error}")
            continue
        if "unavailable" in locked[name] and not source.substitutes:
            reason = locked[name]["unavailable"]["reason"]
            problems.append(f"sources.{name}: {reason}. Or name datasets that may stand in: `substitutes`")
    if problems:
        raise PlainError("\n".join(problems))
    return locked

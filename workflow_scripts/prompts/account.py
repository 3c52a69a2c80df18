"""manifest.json: what became of the mix as asked, for each source, and every prompt of a shard accounted for."""

from collections import Counter, defaultdict
from typing import Any

from workflow_scripts import files
from workflow_scripts.prompts.candidates import Shards
from workflow_scripts.prompts.mix import DUPLICATE, NEAR_DUPLICATE, Drawn, quotas
from workflow_scripts.run import Run

HEADINGS = {DUPLICATE: "repeated", NEAR_DUPLICATE: "near"}


def account(run: Run, shards: Shards, drawn: list[Drawn], filled: list[Drawn]) -> dict[str, Any]:
    """For each source what was asked, found, dropped by reason and taken, what stood in for it, and whom it filled up.

    Of each shard, be it a source's or (in `others`) one that only stood in: available = the dropped + own +
    stood_in_for + filled + not_drawn. `unreplaced` are sources that can't be read, were to give all, and for which
    nothing stood in; where a `total` is met they are not missed.
    """
    config = run.config
    takes = [source.take for source in config.sources.values()]
    wanted = quotas(takes, config.prompts.total)
    dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for result in [*drawn, *filled]:
        for drop in result.drops:
            dropped[drop.ref.shard][drop.reason] += 1
    given: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, result in zip(config.sources, drawn, strict=True):
        for shard, count in Counter(ref.shard for ref in result.refs).items():
            given[shard][name] += count
    fills = Counter(ref.shard for result in filled for ref in result.refs)

    def of_shard(name: str, available: int) -> dict[str, Any]:
        own = given[name][name]
        others = {source: count for source, count in given[name].items() if source != name}
        gone = dropped[name].total() + given[name].total() + fills[name]
        return {
            "available": available,
            "dropped": dict(sorted(dropped[name].items())),
            "own": own,
            "stood_in_for": others,
            "filled": fills[name],
            "not_drawn": available - gone,
        }

    sources = []
    for name, quota, result in zip(config.sources, wanted, drawn, strict=True):
        found = files.read_json(run.source(name))
        by_shard = Counter(ref.shard for ref in result.refs if ref.shard != name)
        sources.append(
            {
                "source": name,
                "asked": config.sources[name].take,
                "quota": quota,
                "unavailable": found.get("unavailable"),
                "rows": found.get("rows", 0),
                "rejected": found.get("rejects", {}),
                **of_shard(name, found.get("prompts", 0)),
                "substituted": dict(by_shard),
                "taken": len(result.refs),
            }
        )
    taken = sum(len(result.refs) for result in [*drawn, *filled])
    # `all` asks for what there is, so only numeric quotas can be missed; a total can be missed by any mix.
    asked = config.prompts.total
    if asked is None:
        asked = sum(len(r.refs) if quota == "all" else quota for quota, r in zip(wanted, drawn, strict=True))
    # Of one that can't be read nobody knows how many all are: where nothing stands in for it, all are missing.
    unreplaced = [
        row["source"]
        for row, result in zip(sources, drawn, strict=True)
        if row["unavailable"] and row["asked"] == "all" and not (result.refs or result.drops)
    ]
    return {
        "run": run.name,
        "asked": asked,
        "taken": taken,
        "short": taken < asked or (config.prompts.total is None and bool(unreplaced)),
        "unreplaced": unreplaced,
        "sources": sources,
        "others": [
            {"source": name, **of_shard(name, len(frame))}
            for name, frame in shards.frames.items()
            if name not in config.sources
        ],
        "filled": dict(fills),
        "stand_ins": shards.stand_ins,
    }


def table(account: dict[str, Any]) -> str:
    """The account as a plain table: a line a source, and one for each that stood in; a column for each kind of drop."""
    shards = [*account["sources"], *account["others"]]
    reasons = list(dict.fromkeys([DUPLICATE, *(reason for shard in shards for reason in shard["dropped"])]))

    def dropped(shard: dict[str, Any]) -> list[int]:
        return [shard["dropped"].get(reason, 0) for reason in reasons]

    none = [""] * len(reasons)
    rows: list[list[Any]] = [
        ["source", "asked", "usable", *(HEADINGS.get(reason, reason) for reason in reasons), "taken"]
    ]
    for row in account["sources"]:
        rows.append([row["source"], row["asked"], row["available"], *dropped(row), row["taken"]])
        if row["unavailable"]:
            rows.append([f"  can't be read: {row['unavailable']['reason']}"])
        rows += [[f"  {name} stands in", "", "", *none, count] for name, count in row["substituted"].items()]
    rows += [[f"  of {row['source']}", "", row["available"], *dropped(row), ""] for row in account["others"]]
    rows += [[f"{name} fills up", "", "", *none, count] for name, count in account["filled"].items()]
    rows.append(["all", account["asked"], "", *none, account["taken"]])
    name = max(24, *(len(row[0]) for row in rows if len(row) > 1))
    widths = [max(9, len(heading)) for heading in rows[0][1:]]
    return "\n".join(
        " ".join([f"{row[0]:<{name}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths, strict=False))])
        for row in rows
    )

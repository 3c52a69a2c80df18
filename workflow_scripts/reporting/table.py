"""summary.json and estimate.json as a person reads them."""

from typing import Any

from workflow_scripts.sources.readers import as_size


def table(summary: dict[str, Any]) -> str:
    """The run's numbers, a line each."""
    classes, failures, marks, ended = (
        ", ".join(f"{count:,} {name}" for name, count in summary[key].items())
        for key in ("classes", "failure_classes", "marks", "ended")
    )
    rate = "" if summary["tokens_per_second"] is None else f" ({summary['tokens_per_second']:,} a second)"
    several = summary["turns"] > summary["completions"]
    about = ended if several else classes
    rows = [
        ("prompts", f"{summary['prompts']:,}"),
        ("completions", f"{summary['completions']:,}" + (f"  ({about})" if about else "")),
        ("failures", f"{summary['failures']:,}" + (f"  ({failures})" if failures else "")),
        *([("turns", f"{summary['turns']:,}  ({classes})")] if several else []),
        *([("marks", marks)] if marks else []),
        *(
            ("refused", f"{told['prompts']:,} of {source}" + "".join(f"; {says}" for says in told["says"]))
            for source, told in summary["refused"].items()
        ),
        ("output tokens", f"{summary['output_tokens']:,}{rate}"),
        *([("checked turns", f"{summary['checked']['turns']:,}")] if summary["checked"]["turns"] else []),
        *training_lines(summary, summary["training_rows"], summary["training_dropped"]),
        ("objects in the store", f"{summary['objects_published']:,}"),
        ("seconds", ", ".join(f"{stage} {value:,.0f}" for stage, value in summary["seconds"].items())),
    ]
    rows += [("alarm", alarm) for alarm in summary["alarms"]]
    return "\n".join([summary["run"], *(f"  {name:<22}{value}" for name, value in rows)])


def training_lines(told: dict[str, Any], rows: int, turns_dropped: dict[str, int]) -> list[tuple[str, str]]:
    """Of summary.json or training.json: what the export holds, what was dropped, what windows and vocabularies cost."""
    turns = ", ".join(f"{count:,} {reason}" for reason, count in turns_dropped.items())
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in told["supervised_tokens_dropped"].items() if count)
    costs = ", ".join(
        f"{cost['window']:,}: {cost['share']['right']:.1%}" for cost in told["windows"] if cost["longer_rows"]
    )
    kept = f"{rows:,} with {told['supervised_tokens']:,} supervised tokens"
    lines = [("training rows", kept if rows else "NONE: no turn passes the config's `training`")]
    if turns:
        lines.append(("turns, dropped", turns))
    if dropped:
        lines.append(("supervised, dropped", dropped))
    if costs:
        lines.append(("a window would cost", costs))
    if draft := told.get("draft_vocabulary"):
        lines.append(("draft vocabulary", f"{draft['size']:,} ids cover {draft['coverage'][str(draft['size'])]:.2%}"))
    return lines


def stand_ins(manifest: dict[str, Any]) -> list[str]:
    """Of manifest.json: a line for each source that could not be read or fell short, and what took its place."""
    lines = []
    for source in manifest["sources"]:
        instead = ", ".join(f"{count:,} from {name}" for name, count in source["substituted"].items()) or "nothing"
        if source["unavailable"]:
            lines.append(f"{source['source']} can't be read ({source['unavailable']['reason']}); instead: {instead}")
        elif source["substituted"]:
            lines.append(
                f"{source['source']} fell short: {source['own']:,} of {source['quota']:,}; the rest: {instead}"
            )
    return lines


def estimate_table(estimate: dict[str, Any]) -> str:
    """What a run will take, a line a source, and what the numbers rest on."""
    lines = [f"{'what it will take':<26} {'prompts':>10} {'prompt tokens':>16} {'output tokens':>16}"]
    for row in [*estimate["sources"], estimate | {"source": "all"}]:
        about = "" if row.get("prompt_tokens_counted", True) else "~"
        lines.append(
            f"  {row['source']:<24} {row['prompts']:>10,} {about + format(row['prompt_tokens'], ','):>16} "
            f"{row['output_tokens']:>16,}"
        )
    lines.append(f"  {'time':<8}{_time(estimate)}")
    lines.append(f"  {'disk':<8}{as_size(estimate['disk_bytes'])}")
    if estimate["store_bytes"] is not None:
        lines.append(f"  {'store':<8}{as_size(estimate['store_bytes'])}")
    return "\n".join([*lines, *(f"  {line}" for line in estimate["assumptions"])])


def _time(estimate: dict[str, Any]) -> str:
    if estimate["hours"] is None:
        per_thousand = estimate["output_tokens"] / 1000 / 3600
        return (
            f"{per_thousand:,.2f} hours at 1,000 tokens/s, GPU-hours if a GPU does that; no earlier run tells the rate"
        )
    rate = f"{estimate['tokens_per_second']:,} tokens/s, as {estimate['measured_in']} had"
    told = f"{estimate['hours']:,.2f} hours at {rate}"
    return told if estimate["gpu_hours"] is None else f"{estimate['gpu_hours']:,.2f} GPU-hours; {told}"

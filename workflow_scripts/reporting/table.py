"""summary.json as a person reads it."""

from typing import Any


def table(summary: dict[str, Any]) -> str:
    """The run's numbers, a line each."""
    classes = ", ".join(f"{count} {name}" for name, count in summary["classes"].items())
    failures = ", ".join(f"{count} {name}" for name, count in summary["failure_classes"].items())
    rate = "" if summary["tokens_per_second"] is None else f" ({summary['tokens_per_second']:,} a second)"
    rows = [
        ("prompts", f"{summary['prompts']:,}"),
        ("completions", f"{summary['completions']:,}  ({classes})" if classes else "0"),
        ("failures", f"{summary['failures']:,}" + (f"  ({failures})" if failures else "")),
        ("output tokens", f"{summary['output_tokens']:,}{rate}"),
        ("training rows", f"{summary['training_rows']:,} with {summary['supervised_tokens']:,} supervised tokens"),
        ("objects in the store", f"{summary['objects_published']:,}"),
        ("seconds", ", ".join(f"{stage} {value:,.0f}" for stage, value in summary["seconds"].items())),
    ]
    rows += [("alarm", alarm) for alarm in summary["alarms"]]
    return "\n".join([summary["run"], *(f"  {name:<22}{value}" for name, value in rows)])


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

"""report.html: a run's numbers, charts, provenance and a sample of its conversations, in one file that opens offline.

Text of models and datasets goes through `visible` and Jinja's escaping; a Content-Security-Policy lets nothing run but
the page's own scripts, named by their hashes, and nothing be fetched.
"""

import argparse
import base64
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import orjson
from markupsafe import Markup

from workflow_scripts import files
from workflow_scripts.completions import progress
from workflow_scripts.completions.by_source import BySource
from workflow_scripts.completions.histogram import EDGES, middle
from workflow_scripts.completions.redrive import standing_failures
from workflow_scripts.config.outputs import LONGER
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.records import Sidecar, SourceCounts
from workflow_scripts.reporting import conversations, curves
from workflow_scripts.reporting.counted import drawn
from workflow_scripts.reporting.plain_text import visible
from workflow_scripts.reporting.provenance import provenance
from workflow_scripts.run import Run

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js", "charts.js")
SHOWN = (  # of summary.json
    *("prompts", "completions", "failures", "output_tokens", "tokens_per_second", "objects_published", "alarms"),
    *("training_rows", "supervised_tokens", "supervised_tokens_dropped", "training_dropped", "windows"),
)
MIX = ("taken", "completions", "failures", "output_tokens")
LENGTHS = ("turns", "mean", "p50", "p90", "prompt")
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def report(run: Run, receipts: list[Path]) -> bytes:
    """The page."""
    summary = files.read_json(run.summary, *SHOWN)
    names = [*run.chunks(), *run.redrives()]
    sidecars: list[Sidecar] = [files.read_json(run.sidecar(name), "classes", "fingerprint") for name in names]
    by_source = BySource()
    for sidecar in sidecars:
        by_source.add_counts(sidecar.get("sources", {}))
    counts = by_source.counts()
    failures = Counter((row["source"], row["class"]) for row in standing_failures(run, run.redrives()).values())
    path = run.folder / "progress.jsonl"
    lines = progress.parse(path.read_bytes()) if path.exists() else []
    lives, deaths = curves.lives(lines)
    mix = _mix(run, counts, failures)
    most = run.config.sampling.tokens_of_turns()[-1]
    data: dict[str, Any] = {
        "most": most,
        "pace": curves.pace(lines),
        "shares": curves.shares(lines),
        "lives": lives,
        "deaths": [death | {"reason": visible(death["reason"])} for death in deaths],
        "stages": curves.stages(run.folder / "timings.jsonl"),
        "upload": curves.upload(run, receipts),
        "mix": mix,
        "failures": [{"source": source, "class": kind, "count": n} for (source, kind), n in failures.items()],
        "output_lengths": [
            {"source": source, "class": kind, **_bin(lower), "count": n}
            for source, of in counts.items()
            for kind, bins in of["output_lengths"].items()
            for lower, n in bins.items()
        ],
        "prompt_lengths": [
            {"source": source, **_bin(lower), "count": n}
            for source, of in counts.items()
            for lower, n in of["prompt_lengths"].items()
        ],
    }
    made_of = provenance(run, sidecars)
    lengths = _quantiles(counts, most)
    return _render(
        run=run.name,
        model=visible(run.config.model.path),
        summary=summary,
        mix=mix,
        samples=run.config.sampling.n,
        lengths=lengths,
        deaths=data["deaths"],
        failures=failures,
        provenance=made_of,
        conversations=conversations.sampled(run),
        flat=list(_flat({key: value for key, value in summary.items() if key != "windows"})),
        dropped_rows=_dropped(summary),
        windows_rows=_windows(summary),
        draft=summary.get("draft_vocabulary"),
        mix_rows=[[row["source"], _asked(row["asked"]), *(_number(row[key]) for key in MIX)] for row in mix],
        lengths_rows=[[row["source"], *(_number(row[key]) for key in LENGTHS)] for row in lengths],
        failures_rows=[[source, kind, _number(n)] for (source, kind), n in sorted(failures.items())],
        deaths_rows=[[death["server"], death["reason"]] for death in data["deaths"]],
        datasets_rows=[_dataset(row) for row in made_of["datasets"]],
        data=data,
    )


def _mix(run: Run, counts: dict[str, SourceCounts], failures: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    """By source: answers as asked and as prompts were taken for them, answers as made, failures."""
    rows = []
    samples = run.config.sampling.n
    for shard in drawn(run):
        name = shard["source"]
        asked = shard.get("quota", 0)
        rows.append(
            {
                "source": name,
                "asked": asked * samples if isinstance(asked, int) else None,  # `all`: what there is
                "taken": shard["prompts"] * samples,
                "completions": counts[name]["completions"] if name in counts else 0,
                "failures": sum(n for (source, _), n in failures.items() if source == name),
                "output_tokens": counts[name]["output_tokens"] if name in counts else 0,
            }
        )
    return rows


def _dropped(summary: dict[str, Any]) -> list[list[str]]:
    """Turns that are no training rows, by reason, with their supervised tokens."""
    tokens, turns = summary["supervised_tokens_dropped"], summary["training_dropped"]
    return [[reason, _number(turns.get(reason)), _number(tokens.get(reason))] for reason in {**turns, **tokens}]


def _windows(summary: dict[str, Any]) -> list[list[str]]:
    """What windows of so many tokens would cost in supervised tokens, by the way to cut (training/windows.py)."""
    return [
        [_number(row["window"]), _number(row["longer_rows"]), *(f"{row['share'][way]:.2%}" for way in LONGER)]
        for row in summary["windows"]
    ]


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a JSON value: (dotted key, value as text)."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield visible(at), f"{value:,}"
    elif isinstance(value, list):
        yield visible(at), visible("; ".join(map(str, value))) or "none"
    else:
        yield visible(at), "none" if value in (None, {}) else visible(str(value))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _asked(value: int | None) -> str:
    return "all" if value is None else _number(value)


def _dataset(row: dict[str, Any]) -> list[str]:
    revision = row["revision"] if row["revision"] != "by content" else row["files"] or "by content"
    dataset = f"{row['dataset']} (can't be read: {row['unavailable']})" if row["unavailable"] else row["dataset"]
    return [row["source"], dataset, revision, row["licence"], _number(row["taken"]), row["dropped"]]


def _bin(lower: str) -> dict[str, int]:
    at = EDGES.index(int(lower))
    return {"from": EDGES[at], "to": EDGES[min(at + 1, len(EDGES) - 1)]}


def _quantiles(counts: dict[str, SourceCounts], most: int) -> list[dict[str, Any]]:
    """By source: turns, mean, and about where a half and nine tenths of the answers are shorter."""
    rows = []
    for name, of in counts.items():
        bins = Counter[str]()
        for lengths in of["output_lengths"].values():
            bins.update(lengths)
        turns = bins.total()
        if turns:
            halves = {f"p{share}": min(most, round(_quantile(bins, share / 100))) for share in (50, 90)}
            prompts = round(_quantile(Counter(of["prompt_lengths"]), 0.5))
            rows.append(
                {"source": name, "turns": turns, "mean": of["output_tokens"] / turns, **halves, "prompt": prompts}
            )
    return rows


def _quantile(bins: Counter[str], share: float) -> float:
    left = share * bins.total()
    for lower in sorted(bins, key=int):
        left -= bins[lower]
        if left <= 0:
            return middle(lower)
    return 0.0


def _render(*, data: dict[str, Any], **values: Any) -> bytes:
    """The template, with its styles and scripts inside."""
    scripts = [(PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    text = orjson.dumps(data).decode()
    for character, escape in UNSAFE.items():
        text = text.replace(character, escape)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": _number, "visible": visible}
    page = environment.get_template("report.html").render(
        hashes=hashes,
        style=Markup((PAGE / "style.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        data=Markup(text),
        licences=[(PAGE / "vendor" / name).read_text(encoding="utf-8") for name in ("d3.LICENSE", "plot.LICENSE")],
        **values,
    )
    return page.encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a run's report, one self-contained HTML file.")
    parser.add_argument("report", type=Path, help="results/RUN/report.html")
    parser.add_argument("--receipts", type=Path, nargs="*", default=[], help="the receipts of what was published")
    args = parser.parse_args()
    run = Run.holding(args.report)
    with timed(run.folder, "reporting"):
        page = report(run, args.receipts)
        files.write_bytes(args.report, page)
    say(f"the report: {args.report} ({len(page) / 1e6:.1f} MB; it opens in any browser, offline)")


if __name__ == "__main__":
    run_job(main)

"""The run's account: summary.json, and the short table at its end."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.completions.redrive import standing_failures
from workflow_scripts.jobs import run_job, timed
from workflow_scripts.reporting import drift
from workflow_scripts.reporting.accounting import Audit, check_file
from workflow_scripts.reporting.alarms import alarms
from workflow_scripts.run import Run


def summarize(run: Run, receipts: list[Path], training: Path) -> dict[str, Any]:
    """The numbers of summary.json. Raises PlainError unless prompts = completions + failures, by id."""
    audit = Audit(run)
    sidecars = audit.all()
    failures = standing_failures(run, run.redrives())
    classes, marks, ended = Counter[str](), Counter[str](), Counter[str]()
    refused: dict[str, Counter[str]] = {}
    for row in failures.values():
        if row["class"] == "refused":
            refused.setdefault(row["source"], Counter())[row["reason"]] += 1
    for sidecar in sidecars:
        classes.update(sidecar["classes"])
        marks.update(sidecar["marks"])
        for counts in sidecar["ended"].values():
            ended.update(counts)
        for source, said in sidecar["refused"].items():
            refused.setdefault(source, Counter()).update(said)
    times = timings(run.folder / "timings.jsonl")
    seconds = stage_seconds(times)
    output_tokens = sum(sidecar["output_tokens"] for sidecar in sidecars)
    index = files.read_json(training, "files", "rows", "supervised_tokens", "dropped", "windows")
    for entry in index["files"]:
        check_file(training.parent / entry["path"], entry)
    checked = drift.check(run)
    generating, made_here = seconds.get("completions", 0), sum(item.get("tokens", 0) for item in times)
    return {
        "run": run.name,
        "prompts": audit.prompts(),
        "samples": run.config.sampling.n,
        "completions": sum(sidecar["completions"]["rows"] for sidecar in sidecars),
        "failures": len(failures),
        "failure_classes": dict(sorted(Counter(row["class"] for row in failures.values()).items())),
        "redrives": len(run.redrives()),
        "turns": classes.total(),
        "classes": dict(sorted(classes.items())),
        "marks": dict(sorted(marks.items())),
        "ended": dict(sorted(ended.items())),
        "refused": {  # by source: prompts whose template refused them, at once or on the way, and its usual words
            source: {"prompts": words.total(), "says": [says for says, _ in words.most_common(3)]}
            for source, words in sorted(refused.items())
        },
        "checked": checked,
        "alarms": alarms(run.folder / "alarms.jsonl") + _drift_alarm(checked) + _text_alarm(marks),
        "prompt_tokens": sum(sidecar["prompt_tokens"] for sidecar in sidecars),
        "output_tokens": output_tokens,
        "tokens_per_second": round(made_here / generating, 1) if generating and made_here else None,
        "training_rows": index["rows"],
        "supervised_tokens": index["supervised_tokens"],
        "training_dropped": index["dropped"],
        "supervised_tokens_dropped": index["supervised_tokens_dropped"],
        "windows": index["windows"],
        "draft_vocabulary": index.get("draft_vocabulary"),
        "objects_published": sum(len(files.read_json(receipt, "objects")["objects"]) for receipt in receipts),
        "seconds": seconds,
    }


def timings(path: Path) -> list[dict[str, Any]]:
    """The lines of timings.jsonl: {stage, start, end}, and the output `tokens` that were made meanwhile."""
    items = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            item = orjson.loads(line)
            if not {"stage", "start", "end"} <= item.keys():
                continue
        except (orjson.JSONDecodeError, AttributeError):
            continue  # cut short by a death; it only costs a time in the table
        items.append(item)
    return items


def stage_seconds(times: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds in which any job of a stage ran, over all starts of the run; overlapping jobs count once."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for item in times:
        spans.setdefault(item["stage"], []).append((item["start"], item["end"]))
    return {stage: round(_union(sorted(spans[stage])), 1) for stage in sorted(spans)}


def _drift_alarm(checked: dict[str, Any]) -> list[str]:
    drifted = checked["drift"]
    if not any(drifted.values()):
        return []
    return [
        f"of {checked['turns']} turns that were checked, {drifted['prompt']} have other prompt ids than their history "
        f"renders to here, and {drifted['text']} other response ids than text; the first: {checked['first']}"
    ]


def _text_alarm(marks: Counter[str]) -> list[str]:
    if not marks["other_text"]:
        return []
    return [f"of {marks['other_text']:,} turns the response ids do not decode to the stored text (other_text)"]


def _union(spans: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="Account for every prompt of a run, and write its summary.json.")
    parser.add_argument("summary", type=Path, help="results/RUN/summary.json")
    parser.add_argument("--training", type=Path, required=True, help="the training shards' index")
    parser.add_argument("--receipts", type=Path, nargs="*", default=[], help="the receipts of what was published")
    args = parser.parse_args()
    run = Run.holding(args.summary)
    with timed(run.folder, "reporting"):
        files.write_json(args.summary, summarize(run, args.receipts, args.training))


if __name__ == "__main__":
    run_job(main)

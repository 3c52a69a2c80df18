"""tuning.json and the table: what every candidate did, how sure that is, and what the whole run would take."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.config import Config
from workflow_scripts.serving.causes import is_out_of_memory
from workflow_scripts.serving.service_log import EXCEPTION
from workflow_scripts.tuning.answers import Compared
from workflow_scripts.tuning.candidates import AS_IS, Candidate
from workflow_scripts.tuning.decide import SURE, Race, Speed
from workflow_scripts.tuning.measure import Outcome

BUSY_CLIENT = 0.8  # of a processor; a client that takes more may be what is measured
FEW_ANSWERS = 30


@dataclass
class Row:
    """A candidate and all that came of it."""

    candidate: Candidate
    outcomes: list[tuple[str, int, Outcome]] = field(default_factory=list)  # server, round
    failed: str | None = None  # why it can't be used: it does not start, or died
    compared: Compared | None = None
    otherwise: str | None = None  # what shows that it answers otherwise


@dataclass(frozen=True)
class Length:
    """Output tokens of an answer: the mean, and half of the interval that holds it in 95 of 100 cases, as a share."""

    mean: float
    spread: float


def answer_length(rows: Sequence[Row]) -> Length | None:
    """By all steady work of candidates that answer alike: tokens made while so many answers ended.

    That counts the long ones that are at work; answers that ended alone would tell of the short ones. None where fewer
    than thirty ended.
    """
    steady = [
        outcome
        for row in rows
        if row.otherwise is None
        for _, _, outcome in row.outcomes
        if outcome.settled and outcome.measured is not None
    ]
    lengths = [tokens for outcome in steady for tokens in outcome.answers]
    if len(lengths) < FEW_ANSWERS:
        return None
    varied = statistics.stdev(lengths) / statistics.fmean(lengths)
    return Length(sum(outcome.tokens for outcome in steady) / len(lengths), SURE * varied / math.sqrt(len(lengths)))


def save(path: Path, told: dict[str, Any]) -> None:
    """tuning.json at this path, and the table beside it."""
    files.write_bytes(path.with_suffix(".txt"), "".join(f"{line}\n" for line in table(told)).encode())
    files.write_json(path, told)


def to_json(config: Config, rows: Sequence[Row], race: Race, facts: dict[str, Any]) -> dict[str, Any]:
    """tuning.json, but for `facts`, which are told as they are.

    run, version, servers, speed_of_servers (against the middle one), answers (of the whole run), and more.
    """
    speeds, length = race.speeds(), answer_length(rows)
    best = race.best()
    winner = next((row.candidate for row in rows if row.candidate.name == best), None)
    told = [_row(config, row, speeds.get(row.candidate.name), race, length, facts) for row in rows]
    return {
        **facts,
        "tokens_per_answer": None
        if length is None
        else {"mean": round(length.mean, 1), "spread": _share(length.spread)},
        "winner": None if winner is None else {"name": winner.name, "args": winner.args},
        "gain": _gain(speeds, best),
        "tied": [row["name"] for row in told if row["standing"] == "tie"],
        "candidates": told,
    }


def _gain(speeds: dict[str, Speed], best: str | None) -> dict[str, float] | None:
    """How much faster the best is than the servers as they are, as a share, and the spread of that."""
    if best is None or AS_IS not in speeds or not speeds[AS_IS].rate:
        return None
    ratio = speeds[best].rate / speeds[AS_IS].rate
    spread = 0.0 if best == AS_IS else ratio * math.hypot(speeds[best].spread, speeds[AS_IS].spread)
    return {"share": round(ratio - 1, 4), "spread": _share(spread)}


def _row(
    config: Config, row: Row, speed: Speed | None, race: Race, length: Length | None, facts: dict[str, Any]
) -> dict[str, Any]:
    outcomes = [outcome for _, _, outcome in row.outcomes]
    steady = [outcome for outcome in outcomes if outcome.measured is not None]
    name, gpus = row.candidate.name, _gpus(config)
    if row.failed is not None:
        standing = "failed"
    elif row.otherwise is not None:
        standing = "other_answers"
    else:
        standing = race.standing(name) if speed is not None else "not_measured"
    whole = None
    if speed is not None and speed.rate > 0 and length is not None:
        hours = facts["answers"] * length.mean / (speed.rate * sum(facts["speed_of_servers"].values())) / 3600
        whole = {
            "hours": round(hours, 3),
            "days": round(hours / 24, 3),
            "gpu_hours": None if gpus is None else round(hours * facts["servers"] * gpus, 2),
            "spread": _share(math.hypot(speed.spread, length.spread)),
        }
    classes = sum((Counter(outcome.classes) for outcome in outcomes), Counter[str]())
    compared = row.compared
    return {
        "name": name,
        "args": row.candidate.args,
        "standing": standing,
        "reason": row.failed or row.otherwise,
        "tokens_per_second": None if speed is None else round(speed.rate, 2),
        "tokens_per_second_per_gpu": None if speed is None or gpus is None else round(speed.rate / gpus, 2),
        "spread": None if speed is None else _share(speed.spread),
        "seats": {"granted": outcomes[-1].seats_granted, "used": round(_mean(steady, "seats_used"), 1)}
        if outcomes
        else None,
        "retracted": sum(outcome.retracted for outcome in outcomes),
        "out_of_memory": row.failed is not None and is_out_of_memory(row.failed),
        "truncated": _truncated(outcomes),
        "classes": dict(sorted(classes.items())),
        "failed": dict(sorted(sum((Counter(outcome.failed) for outcome in outcomes), Counter[str]()).items())),
        "whole_run": whole,
        "answers": None
        if compared is None
        else {
            **{kind: compared.likeness[kind] for kind in ("same", "near_tie", "different")},
            "logprobs_moved": None if compared.moved is None else round(compared.moved, 5),
        },
        "measurements": [_measurement(*outcome) for outcome in row.outcomes],
    }


def _gpus(config: Config) -> int | None:
    """Of one server; None on the CPU."""
    return config.servers.gpus_per_server if config.servers.engine == "sglang" else None


def _mean(outcomes: Sequence[Outcome], key: str) -> float:
    return statistics.fmean(getattr(outcome, key) for outcome in outcomes) if outcomes else 0.0


def _truncated(outcomes: Sequence[Outcome]) -> float | None:
    """The share of turns, of all measurements."""
    turns = sum(sum(outcome.classes.values()) for outcome in outcomes)
    cut = sum((outcome.truncated or 0.0) * sum(outcome.classes.values()) for outcome in outcomes)
    return round(cut / turns, 4) if turns else None


def _measurement(server: str, number: int, outcome: Outcome) -> dict[str, Any]:
    found = outcome.measured
    return {
        "server": server,
        "round": number,
        "tokens_per_second": None if found is None else round(found.rate, 2),
        "spread": None if found is None or not found.rate else _share(SURE * found.error / found.rate),
        "seconds": None if found is None else round(found.seconds, 1),
        "ramp_seconds": round(outcome.ramp_seconds, 1),
        "settled": outcome.settled,
        "cut_short": outcome.cut_short,
        "sample_used_up": outcome.used_up,
        "answers": len(outcome.answers),
        "seats_used": round(outcome.seats_used, 1),
        "retracted": outcome.retracted,
        "client": round(outcome.client, 2),
    }


def _share(value: float) -> float:
    return round(value, 4)


STANDINGS = {
    "best": "<- best",
    "tie": "not told apart from the best",
    "slower": "",
    "other_answers": "OTHER ANSWERS",
    "failed": "failed",
    "not_measured": "",
}


def table(told: dict[str, Any]) -> list[str]:
    """tuning.json as lines for a person, the fastest first."""
    rows = sorted(told["candidates"], key=lambda row: -(row["tokens_per_second"] or -1.0))
    wide = max(len(row["name"]) for row in rows)
    on_gpus = any(row["tokens_per_second_per_gpu"] is not None for row in rows)
    head = (
        f"  {'':<{wide}} {'tokens/s':>16} {'per GPU' if on_gpus else '':>9} {'seats':>11} {'retracted':>9} {'cut':>5}"
    )
    lines = [f"{told['run']}: {len(rows)} candidates", f"{head} {'the whole run':>30}"]
    for row in rows:
        lines += _line(row, wide)
    best = told["winner"]
    if best is None:
        return [*lines, "  no candidate can be used"]
    gain = told["gain"]
    faster = ""
    if gain is not None and best["name"] != AS_IS:
        faster = f", {gain['share']:+.1%} (± {gain['spread']:.1%}) against the servers as they are"
    tied = f"; not told apart from it: {', '.join(told['tied'])}" if told["tied"] else ""
    lines.append(f"  best: {best['name']}{faster}{tied}")
    lines += [f"  note: {note}" for note in notes(told)]
    return [line.rstrip() for line in lines]


def _line(row: dict[str, Any], wide: int) -> list[str]:
    if row["tokens_per_second"] is None:
        return [f"  {row['name']:<{wide}} {'-':>16}  {_in_short(row['reason'])}"]
    speed = f"{row['tokens_per_second']:,.0f} ± {row['spread']:.1%}"
    gpu = row["tokens_per_second_per_gpu"]
    seats = f"{row['seats']['used']:.0f}/{row['seats']['granted']:,}"
    cut = "-" if row["truncated"] is None else f"{row['truncated']:.0%}"
    whole = row["whole_run"]
    takes = "-"
    if whole is not None:
        hours = whole["hours"]
        takes = (
            f"{60 * hours:,.0f} min" if hours < 2 else f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"
        )
        takes = f"{whole['gpu_hours']:,.1f} GPU-h, {takes}" if whole["gpu_hours"] is not None else takes
        takes = f"{takes} ± {whole['spread']:.0%}"
    line = (
        f"  {row['name']:<{wide}} {speed:>16} {'' if gpu is None else format(gpu, ',.0f'):>9} {seats:>11} "
        f"{row['retracted']:>9} {cut:>5} {takes:>30}  {STANDINGS[row['standing']]}"
    )
    return [line, *([f"  {'':<{wide}}   {_in_short(row['reason'])}"] if row["reason"] else [])]


def _in_short(reason: str | None) -> str:
    """The line of a reason that says most: what a log ended with."""
    lines = [line.strip() for line in (reason or "it was not measured").splitlines()]
    said = [line for line in lines if line and not line.startswith("Known cause: ")]
    return ([line for line in said if EXCEPTION.match(line)] or said)[-1]


def notes(told: dict[str, Any]) -> list[str]:
    """What makes the numbers less sure than they look."""
    measurements = [(row["name"], one) for row in told["candidates"] for one in row["measurements"]]
    found = []
    for flag, text in (
        ("sample_used_up", "the sample was used up; raise tune.prompts, if the run has more"),
        ("client", "this process was busy and may be what was measured"),
    ):
        names = [name for name, one in measurements if (one[flag] > BUSY_CLIENT if flag == "client" else one[flag])]
        if names:
            found.append(f"{', '.join(dict.fromkeys(names))}: {text}")
    early = [name for name, one in measurements if not one["settled"]]
    if early:
        found.append(f"{', '.join(dict.fromkeys(early))}: the work had not settled; raise tune.seconds or tune.prompts")
    parted = [row["answers"]["different"] for row in told["candidates"] if row["name"] == AS_IS and row["answers"]]
    if any(parted):
        found.append(f"{AS_IS} answers otherwise from time to time itself ({parted[0]} answers): others may, too")
    failing = [f"{row['name']} ({sum(row['failed'].values())})" for row in told["candidates"] if row["failed"]]
    if failing:
        found.append(f"prompts failed: {', '.join(failing)}")
    slow = [f"{server} {share:.0%}" for server, share in told["speed_of_servers"].items() if share != 1.0]
    if slow:
        found.append(f"servers of another speed than the middle one, which tokens/s is of: {', '.join(slow)}")
    for server, reason in told["unusable_servers"].items():
        found.append(f"{server} could not be used: {_in_short(reason)}")
    length = told["tokens_per_answer"]
    if length is None:
        found.append(
            "too few answers ended to say how long they are, and so how long the run takes: raise tune.seconds"
        )
    else:
        found.append(
            f"answers have {length['mean']:,.0f} tokens (± {length['spread']:.1%}); the whole run: {told['answers']:,}"
        )
    return found

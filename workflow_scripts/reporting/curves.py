"""What charts over time are drawn from: progress.jsonl in a few hundred bins, servers' lives, files by their dates."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.run import Run

MOST_BINS = 240
SHARE_BINS = 60  # shares of classes want more turns in a bin
LEAST_SECONDS = 10.0
SILENCE_SECONDS = 60.0  # between two lines: nobody was at work

Row = dict[str, Any]


@dataclass
class _Bin:
    """A span of time: `covered` seconds of it were work."""

    covered: float = 0.0
    tokens: Counter[str] = field(default_factory=Counter)
    in_flight: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    seats: dict[str, int] = field(default_factory=dict)
    classes: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


def _binned(lines: list[Row], most: int) -> tuple[float, float, list[_Bin]]:
    """(the first bin's time, a bin's seconds, the bins). A line's counts are spread over the time that it is of."""
    begin = min(line["at"] - line["seconds"] for line in lines)
    extent = max(line["at"] for line in lines) - begin
    width = max(LEAST_SECONDS, extent / most)
    bins = [_Bin() for _ in range(max(1, math.ceil(extent / width - 1e-9)))]
    for line in lines:
        for at, share, seconds in _overlaps(line, begin, width, len(bins) - 1):
            one = bins[at]
            one.covered += seconds
            for name, server in line["servers"].items():
                one.tokens[name] += server["output_tokens"] * share
                one.in_flight[name].append(server["in_flight"])
                one.seats[name] = server["seats"]
            for key, counter in (("classes", one.classes), ("failed", one.failed)):
                for kind, count in line[key].items():
                    counter[kind] += count * share
    return begin, width, bins


def _overlaps(line: Row, begin: float, width: float, most: int) -> Iterable[tuple[int, float, float]]:
    """(bin, share of the line, seconds) for each bin that a line lies in."""
    start, end = line["at"] - line["seconds"] - begin, line["at"] - begin
    first, last = min(most, max(0, int(start / width))), min(most, int(end / width))
    for at in range(first, last + 1):
        seconds = min(end, (at + 1) * width) - max(start, at * width)
        if first == last or seconds > 0:
            yield at, seconds / line["seconds"] if line["seconds"] and first != last else 1.0, max(0.0, seconds)


def pace(lines: list[Row]) -> list[Row]:
    """{"from", "to": ms, "server", "rate", "in_flight", "seats"} of each server in each bin in which anybody worked."""
    if not lines:
        return []
    begin, width, bins = _binned(lines, MOST_BINS)
    servers = sorted({name for line in lines for name in line["servers"]})
    rows = []
    for at, one in enumerate(bins):
        for name in servers if one.covered else ():
            flying = one.in_flight[name]
            rows.append(
                {
                    **_span(begin, width, at),
                    "server": name,
                    "rate": round(one.tokens[name] / one.covered, 1),
                    "in_flight": round(sum(flying) / len(flying), 1) if flying else 0,
                    "seats": one.seats.get(name, 0),
                }
            )
    return rows


def shares(lines: list[Row]) -> list[Row]:
    """{"from", "to": ms, "class", "share"}: of the turns of a bin, failures among them as `failed`."""
    if not lines:
        return []
    begin, width, bins = _binned(lines, SHARE_BINS)
    kinds = sorted({kind for one in bins for kind in one.classes})
    rows = []
    for at, one in enumerate(bins):
        counts = {kind: one.classes[kind] for kind in kinds} | {"failed": one.failed.total()}
        total = sum(counts.values())
        rows += [
            {**_span(begin, width, at), "class": kind, "share": round(count / total, 4)}
            for kind, count in counts.items()
            if count
        ]
    return rows


def lives(lines: list[Row]) -> tuple[list[Row], list[Row]]:
    """[{"server", "start", "from", "to"}] for each time that a server answered, and [{"server", "at", "reason"}]."""
    spans: list[Row] = []
    current: dict[str, Row] = {}
    deaths: dict[tuple[str, float], Row] = {}
    for line in sorted(lines, key=lambda line: float(line["at"])):
        for name, server in line["servers"].items():
            begun = line["at"] - line["seconds"]
            span = current.get(name)
            if span is None or span["start"] != server["start"] or begun * 1000 > span["to"] + SILENCE_SECONDS * 1000:
                span = {"server": name, "start": server["start"], "from": _ms(begun), "to": 0}
                current[name] = span
                spans.append(span)
            span["to"] = _ms(line["at"])
        for death in line["deaths"]:
            told = {"server": death["server"], "at": _ms(death["at"]), "reason": death["reason"]}
            deaths[death["server"], death["at"]] = told
    for span in spans:  # it was over when it died, not when somebody wrote it down
        ends = [one["at"] for one in deaths.values() if one["server"] == span["server"] and span["from"] < one["at"]]
        span["to"] = min([span["to"], *ends])
    return spans, list(deaths.values())


def stages(path: Path) -> list[Row]:
    """{"stage", "from", "to"}: when jobs of a stage were at work, as in timings.jsonl, overlaps joined."""
    spans: defaultdict[str, list[list[float]]] = defaultdict(list)
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            item = orjson.loads(line)
            if item["stage"] != "reporting":  # it is made again at any later time
                found.append((float(item["start"]), float(item["end"]), str(item["stage"])))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            continue  # cut short by a death
    for start, end, stage in sorted(found):
        if spans[stage] and start <= spans[stage][-1][1] + LEAST_SECONDS:
            spans[stage][-1][1] = max(spans[stage][-1][1], end)
        else:
            spans[stage].append([start, end])
    return [
        {"stage": stage, "from": _ms(start), "to": _ms(end)} for stage, times in spans.items() for start, end in times
    ]


def upload(run: Run, receipts: list[Path]) -> list[Row]:
    """{"t": ms, "what": finished or stored, "bytes"}, summed up: by the dates of sidecars, and of receipts."""
    sizes: dict[str, list[tuple[float, int]]] = {"finished": [], "stored": []}
    for chunk in [*run.chunks(), *run.redrives()]:
        sidecar = files.read_json(run.sidecar(chunk), "completions", "failures")
        size = sidecar["completions"]["bytes"] + sidecar["failures"]["bytes"]
        sizes["finished"].append((run.sidecar(chunk).stat().st_mtime, size))
    for receipt in receipts:
        size = sum(
            entry["bytes"]
            for entry in files.read_json(receipt, "objects")["objects"]
            if entry["path"].startswith("completions/")
        )
        sizes["stored"].append((receipt.stat().st_mtime, size))
    return [row for what, dated in sizes.items() for row in _summed(what, dated)] if receipts else []


def _summed(what: str, dated: list[tuple[float, int]]) -> list[Row]:
    total, rows = 0, []
    for at, size in sorted(dated):
        total += size
        rows.append({"t": _ms(at), "what": what, "bytes": total})
    step = -(-len(rows) // MOST_BINS) if rows else 1
    return rows[::-step][::-1]  # the last is among them


def _span(begin: float, width: float, at: int) -> Row:
    return {"from": _ms(begin + at * width), "to": _ms(begin + (at + 1) * width)}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)

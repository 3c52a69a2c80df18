"""A snapshot as lines for a terminal: plain text, no colour, made for 80 columns; narrower ones see its left."""

import time
from typing import Any

from workflow_scripts.reporting.plain_text import clip, one_line

RISING = 1.3  # times its share of all turns, for a class to be called so
NOTABLE = 0.01  # a share below which no trend is told
STATES = {
    "drawing": "sources are read and prompts drawn",
    "running": "running",
    "interrupted": "interrupted; the same line goes on",
    "finished": "finished",
}


def lines(seen: dict[str, Any], width: int) -> list[str]:
    """The whole screen, most important first."""
    parts = [_head(seen, width), _alarms(seen, width), _servers(seen), _classes(seen), _failures(seen)]
    parts += [_sources(seen), _gpus(seen)]
    found: list[str] = []
    for part in filter(None, parts):
        found += [*([""] if found else []), *part]
    return [clip(line, width).rstrip() for line in found]


def _head(seen: dict[str, Any], width: int) -> list[str]:
    answers, chunks, rate, left = seen["answers"], seen["chunks"], seen["rate"], seen["left"]
    state = STATES[seen["state"]]
    if seen["since"] is not None and seen["state"] in ("running", "drawing"):
        state += f" for {_span(seen['at'] - seen['since'])}"
    elif seen["since"] is not None:
        state += time.strftime(", %Y-%m-%d %H:%M", time.localtime(seen["since"]))
    found = [f"{seen['run']}   {state}"]
    found.append(f"answers   {_progress(answers, width)}")
    begun = "in work" if seen["state"] == "running" else "begun"
    found.append(f"chunks    {chunks['done']:,} done, {chunks['begun']:,} {begun}, {chunks['waiting']:,} waiting")
    found.append(f"tokens    {seen['tokens']['output']:,} output, {seen['tokens']['prompt']:,} prompt")
    told = [
        f"{rate[key]:,.0f} {words}"
        for key, words in (("now", "now"), ("five_minutes", "over 5 min"), ("all", "in all"))
        if rate[key] is not None
    ]
    found.append(f"tokens/s  {', '.join(told) or 'not known yet'}")
    if left is not None:
        least, most = left["seconds"]
        ends = [time.strftime("%a %H:%M", time.localtime(seen["at"] + seconds)) for seconds in (least, most)]
        found.append(f"left      {_span(least)} to {_span(most)}, until {' to '.join(dict.fromkeys(ends))}")
    elif seen["state"] == "running":
        made = chunks["done"] == chunks["all"] and not chunks["begun"]
        found.append("left      " + ("answers: none; what is made of them follows" if made else "too early to tell"))
    if seen["store"] is not None:
        waiting = seen["store"]["waiting"]
        found.append(f"store     {seen['store']['objects']:,} objects; {waiting:,} finished files still to upload")
    return found


def _progress(answers: dict[str, Any], width: int) -> str:
    failed = f", {answers['failed']:,} failed" if answers["failed"] else ""
    if answers["owed"] == 0:
        return "none is asked for"
    if answers["owed"] is None:
        return f"{answers['done']:,}{failed}"
    over = answers["done"] + answers["failed"]
    share = 1.0 if over >= answers["owed"] else min(0.999, over / answers["owed"])
    cells = max(10, min(30, width - 60))
    bar = "#" * int(cells * share) + "." * (cells - int(cells * share))
    return f"[{bar}] {share:6.1%}  {answers['done']:,} of {answers['owed']:,}{failed}"


def _alarms(seen: dict[str, Any], width: int) -> list[str]:
    return [f"ALARM     {one_line(alarm, width - 10)}" for alarm in seen["alarms"][-5:]]


def _servers(seen: dict[str, Any]) -> list[str]:
    if not seen["servers"]:
        return []
    heads = f"{'tok/s now':>9}{'5 min':>7}{'in all':>7}{'in flight':>10}{'queued':>7}{'seats':>6}{'deaths':>7}"
    found = [f"{'server':<26}{heads}"]
    for row in seen["servers"]:
        name = (
            one_line(row["name"], 25) if row["status"] in ("ready", "elsewhere") else f"{row['name']} {row['status']}"
        )
        rates = (_number(row[key]) for key in ("now", "five_minutes", "all"))
        now, recent, total = rates
        line = f"{name:<26}{now:>9}{recent:>7}{total:>7}{row['in_flight']:>10,}{_number(row['queued']):>7}"
        found.append(f"{line}{_number(row['seats']):>6}{row['deaths']:>7,}")
    return found


def _classes(seen: dict[str, Any]) -> list[str]:
    found = [f"{'turns':<26}{'count':>12}{'share':>9}{'5 min':>9}"] if seen["classes"] else []
    for kind, row in seen["classes"].items():
        recent = "-" if row["recent"] is None else f"{row['recent']:.1%}"
        found.append(f"{kind:<26}{row['count']:>12,}{row['share']:>9.1%}{recent:>9}{_trend(kind, row)}")
    return found


def _trend(kind: str, row: dict[str, Any]) -> str:
    share, recent = row["share"], row["recent"]
    if recent is None or kind == "complete" or max(share, recent) < NOTABLE:
        return ""
    if recent > RISING * share:
        return "  rising"
    return "  falling" if share > RISING * recent else ""


def _failures(seen: dict[str, Any]) -> list[str]:
    found = [f"{'failures':<26}{'count':>12}{'':>9}{'5 min':>9}"] if seen["failures"] else []
    return found + [
        f"{kind:<26}{row['count']:>12,}{'':>9}{row['recent']:>9,}" for kind, row in seen["failures"].items()
    ]


def _sources(seen: dict[str, Any]) -> list[str]:
    found = [f"{'source':<26}{'answered':>10}{'of':>10}{'prompt tok.':>13}{'output tok.':>14}{'mean':>7}"]
    for row in seen["sources"]:
        mean = f"{row['output_tokens'] / row['done']:,.0f}" if row["done"] else "-"
        found.append(
            f"{one_line(row['source'], 25):<26}{row['done']:>10,}{_number(row['owed']):>10}{row['prompt_tokens']:>13,}"
            f"{row['output_tokens']:>14,}{mean:>7}"
        )
    return found if seen["sources"] else []


def _gpus(seen: dict[str, Any]) -> list[str]:
    found = [f"{'GPU':<40}{'use':>6}{'memory':>24}"] if seen["gpus"] else []
    for row in seen["gpus"]:
        use = "-" if row["percent"] is None else f"{row['percent']:.0f} %"
        memory = "-" if row["used"] is None else f"{row['used']:,.0f} of {row['total'] or 0:,.0f} MiB"
        found.append(f"{one_line(row['index'] + ' ' + row['name'], 39):<40}{use:>6}{memory:>24}")
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _span(seconds: float) -> str:
    """A time as people say it."""
    minutes, hours = int(seconds / 60), int(seconds / 3600)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"

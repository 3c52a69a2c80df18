"""Twenty conversations of each source, so that a person sees the data: drawn by id, cut to what a page can hold."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import orjson
import polars as pl

from workflow_scripts.completions.redrive import standing_failures
from workflow_scripts.files import lines_zst
from workflow_scripts.prompts import manifest_file
from workflow_scripts.reporting.plain_text import cut, one_line, visible
from workflow_scripts.run import Run

OF_SOURCE = 20
PAGE_BYTES = 2_500_000  # of text, for all of them
MOST_TEXT = 6_000  # bytes of one text, and
LEAST_TEXT = 240
MOST_MESSAGES = 24
OPENING = 160  # characters of a question that name a conversation
ID_AT = slice(14, 78)  # of a line, which begins with {"prompt_id":"


def sampled(run: Run) -> dict[str, list[dict[str, Any]]]:
    """By source: {"prompt_id", "source", "ended", "tools", "messages": [{"role", "name", "thoughts", "text", "calls",
    "turn"}], "left_out"}. Texts are visible and cut; `left_out` counts messages that there was no room for.
    """
    wanted = _draw(run)
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for chunk, ids in sorted(wanted.items()):
        for record in _records(run, f"{chunk:05d}", ids):
            found[record["source"]].append(record)
    room = PAGE_BYTES // max(1, sum(map(len, found.values())))
    return {source: [_page(record, room) for record in records] for source, records in sorted(found.items())}


def _draw(run: Run) -> dict[int, set[bytes]]:
    """By chunk, the ids that are drawn: of what a source has in chunks the lowest second halves; ids are hashes."""
    failed = Counter(prompt_id for prompt_id, _ in standing_failures(run, []))
    lost = [prompt_id for prompt_id, count in failed.items() if count == run.config.sampling.n]
    manifest = manifest_file.read(run, ["prompt_id", "source", "chunk"])
    drawn = (
        manifest.lazy()
        .filter(~pl.col("prompt_id").is_in(lost))
        .with_columns(pl.col("prompt_id").str.slice(32).alias("half"))
        .filter(pl.col("half").rank("ordinal").over("source") <= OF_SOURCE)
        .collect()
    )
    found: defaultdict[int, set[bytes]] = defaultdict(set)
    for prompt_id, chunk in drawn.select("prompt_id", "chunk").iter_rows():
        found[int(chunk)].add(prompt_id.encode())
    return found


def _records(run: Run, chunk: str, ids: set[bytes]) -> Iterator[dict[str, Any]]:
    """The completions of these prompts, the first sample of each; other lines are not parsed."""
    left = set(ids)
    for line in lines_zst(run.completions(chunk)):
        if line[ID_AT] in left:
            left.discard(line[ID_AT])
            yield orjson.loads(line)
            if not left:
                return


def _page(record: dict[str, Any], room: int) -> dict[str, Any]:
    """A conversation whose texts take about `room` bytes of the page."""
    turns, messages = record["turns"], record["messages"]
    older = sum(message["role"] == "assistant" for message in messages) - len(turns)
    shown = messages if len(messages) <= MOST_MESSAGES else [*messages[:4], *messages[4 - MOST_MESSAGES :]]
    texts = sum(1 + ("reasoning_content" in one) + len(one.get("tool_calls", ())) for one in shown)
    most = max(LEAST_TEXT, min(MOST_TEXT, room // max(1, texts)))
    asked = next((one["content"] for one in messages if one["role"] == "user"), "")
    numbers = iter(range(-older, len(turns)))
    by_place = {id(one): next(numbers) for one in messages if one["role"] == "assistant"}
    return {
        "prompt_id": record["prompt_id"],
        "source": record["source"],
        "ended": record["ended"],
        "tools": [visible(str(tool.get("function", tool).get("name"))) for tool in record["tools"] or ()],
        "classes": list(dict.fromkeys(turn["class"] for turn in turns)),
        "tokens": sum(turn["usage"]["completion_tokens"] for turn in turns),
        "opening": one_line(asked[: 2 * OPENING], OPENING),
        "messages": [_message(one, turns, by_place.get(id(one), -1), most) for one in shown],
        "left_out": len(messages) - len(shown),
    }


def _message(message: Any, turns: list[Any], number: int, most: int) -> dict[str, Any]:
    turn = turns[number] if number >= 0 else None
    return {
        "role": message["role"],
        "name": _fit(message.get("name", ""), 80),
        "thoughts": _fit(message.get("reasoning_content", ""), most),
        "text": _fit(message["content"], most),
        "calls": [
            {"name": _fit(call["function"]["name"], 80), "arguments": _fit(call["function"]["arguments"], most)}
            for call in message.get("tool_calls", ())
        ],
        "turn": turn
        and {
            "class": turn["class"],
            "marks": turn["marks"],
            "tokens": turn["usage"]["completion_tokens"],
            "prompt_tokens": turn["usage"]["prompt_tokens"],
            "seconds": turn["seconds"],
        },
    }


def _fit(text: str, most: int) -> str:
    """The text, visible, in about `most` bytes of HTML."""
    sample = text[:2000]
    weight = len(visible(sample).replace("&", "&amp;").replace("<", "&lt;").replace('"', "&#34;").encode())
    return visible(cut(text, most * len(sample) // max(weight, 1) if sample else most))

"""A run's folder as a finished run leaves it, with no run: any number of completions, and texts that want to harm.

`python -m tests.standin.made_run RESULTS --prompts N` writes one. What it holds follows from the seed alone.
"""

import argparse
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import yaml

from workflow_scripts import files
from workflow_scripts.completions.by_source import BySource
from workflow_scripts.completions.finish import keys_sha256
from workflow_scripts.records import Sidecar
from workflow_scripts.run import Run
from workflow_scripts.training.rows import Row
from workflow_scripts.training.shards import Origin, Shards, writers

BEGAN = 1_790_000_000.0
SOURCES = {  # of a hundred prompts, and the mean of its answers in tokens
    "infinity_instruct": (46, 900),
    "hermes_func_calling": (12, 180),
    "openorca": (18, 320),
    "metamathqa": (16, 1400),
    "own_tickets": (8, 240),
}
CLASSES = {"complete": 84, "cut_in_answer": 6, "cut_in_thinking": 7, "repetition": 2, "empty": 1}
WORDS = "the a server answers questions of many people and a model learns what to say when tokens are few or long"

# Each wants to do something to a page or a terminal.
NASTY = [
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "\x1b[2J\x1b[31mred\x1b]0;owned\x07 \x9b31m and a bell \x07",
    "price \u202etxt.exe\u202c \u2066isolated\u2069 \u200bhidden",
    "<!-- <details open> ]]> &lt; {{ 7*7 }} {% raw %} ${alert(1)} `x` \u2028 next",
    "long " + "0123456789" * 100_000,
    "\u05e9\u05dc\u05d5\u05dd and \u0645\u0631\u062d\u0628\u0627, \U0001f469\u200d\U0001f4bb, \u6f22\u5b57",
    "a" * 4000 + " " + "Z\u0351\u036b\u0343" * 200,
]


class World:
    """Draws what the run holds."""

    def __init__(self, seed: int, ids: int, nasty: bool) -> None:
        self.random = random.Random(seed)
        self.ids = ids  # token ids that are stored of a turn at most: a real one has them all
        self.nasty = NASTY if nasty else []
        self._pool = [self.random.randrange(150_000) for _ in range(1 << 14)]

    def tokens(self, count: int) -> list[int]:
        """Some token ids; to draw each of a million completions' would take hours."""
        start = self.random.randrange(len(self._pool) - count)
        return self._pool[start : start + count]

    def text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS.split(), k=words)).capitalize() + "."

    def completion(self, number: int) -> dict[str, Any]:
        source = self.random.choices(list(SOURCES), [share for share, _ in SOURCES.values()])[0]
        tools = source == "hermes_func_calling"
        kind = "tool_call" if tools else self.random.choices(list(CLASSES), list(CLASSES.values()))[0]
        output = round(self.random.lognormvariate(math.log(SOURCES[source][1]), 0.7))
        output = 4096 if kind.startswith("cut") else min(4000, max(1, output))
        prompt = round(self.random.lognormvariate(math.log(140), 1.1)) + 12
        words = min(output // 4, 60)
        answer: dict[str, Any] = {"role": "assistant", "content": "" if tools else self.text(words)}
        if not tools:
            answer["reasoning_content"] = self.text(words)
        else:
            function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
            answer["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        question = self.nasty[number % len(self.nasty)] if self.nasty and number % 3 == 0 else self.text(20)
        if self.nasty and number % 2 == 0:
            answer["content"] = self.nasty[number // 2 % len(self.nasty)]
            answer["reasoning_content"] = self.nasty[number // 3 % len(self.nasty)]
        turn = {
            "finish_reason": "length" if kind.startswith("cut") else "stop",
            "class": kind,
            "marks": ["no_thinking"] if tools else [],
            "prompt_token_ids": self.tokens(min(prompt, self.ids)),
            "response_token_ids": self.tokens(min(output, self.ids)),
            "usage": {"prompt_tokens": prompt, "completion_tokens": output},
            "sampling": {"temperature": 0.7, "max_tokens": 4096, "seed": 0},
            "seed_honoured": False,
            "server": f"server {number % 2}",
            "attempts": 1,
            "seconds": round(output / 50, 1),
        }
        schema = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
        return {
            "prompt_id": f"{self.random.getrandbits(256):064x}",
            "first_id": f"{number:064x}",
            "source": source,
            "source_id": str(number),
            "source_row": number,
            "messages": [{"role": "user", "content": question}, answer],
            "tools": [schema] if tools else None,
            "meta": {},
            "sample": 0,
            "turns": [turn],
            "ended": "tool_call" if tools else "complete",
        }


def make(results: Path, prompts: int = 300, chunks: int = 6, ids: int = 40, seed: int = 0, nasty: bool = False) -> Run:
    """Write results/world-0badcafe."""
    run = Run(results / "world-0badcafe")
    world = World(seed, ids, nasty)
    config = {
        "name": "world",
        "results": str(results),
        "sources": {
            name: {"dataset": f"org/{name}", "take": max(1, prompts * n // 100)} for name, (n, _) in SOURCES.items()
        },
        "model": {"path": "org/Model-27B", "revision": "f" * 40},
        "sampling": {"temperature": 0.7, "max_tokens": 4096, "thinking": True},
        "chunks": {"count": chunks},
        "servers": {"engine": "sglang-cpu", "count": 2, "args": {"context-length": 8192}},
    }
    files.write_bytes(run.folder / "run.yaml", yaml.safe_dump(config, sort_keys=False).encode())
    rows: list[tuple[str, str, int, int, int]] = []
    sidecars = []
    for chunk in run.chunks():
        owed = range(prompts * int(chunk) // chunks, prompts * (int(chunk) + 1) // chunks)
        made = [world.completion(number) for number in owed]
        failed = [made.pop() for _ in range(len(made) // 40)]
        rows += [(row["prompt_id"], row["source"], int(chunk), at, 0) for at, row in enumerate([*made, *failed])]
        sidecars.append(_write_chunk(run, chunk, made, failed))
    names = ("prompt_id", "source", "chunk", "position", "row")
    with files.atomic_path(run.manifest) as tmp:
        pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp)
    counts = Counter(source for _, source, *_ in rows)
    _write_records(run, counts, prompts)
    _write_training(run)
    _write_progress(run, world.random, sidecars)
    _write_summary(run, sidecars, len(rows))
    return run


def _write_chunk(run: Run, chunk: str, made: list[Any], failed: list[Any]) -> Sidecar:
    files.write_jsonl_zst(run.completions(chunk), made)
    kinds = ("too_long", "refused", "server_error")
    failures = [
        {key: row[key] for key in ("prompt_id", "sample", "source")}
        | {"class": kinds[at % 3], "reason": "it is too long: \x1b[1m9,000\x1b[0m tokens", "final": True, "attempts": 1}
        for at, row in enumerate(failed)
    ]
    files.write_jsonl_zst(run.failures(chunk), failures)
    by_source = BySource()
    for row in made:
        by_source.add(row)
    turns = [turn for row in made for turn in row["turns"]]
    ended: dict[str, Counter[str]] = {}
    for row in made:
        ended.setdefault(row["source"], Counter())[row["ended"]] += 1
    sidecar: Any = {
        "chunk": chunk,
        "prompts_sha256": "0" * 64,
        "keys_sha256": keys_sha256((row["prompt_id"], 0) for row in [*made, *failed]),
        "completions": _entry(run.completions(chunk), len(made)),
        "failures": _entry(run.failures(chunk), len(failed)),
        "prompt_tokens": sum(turn["usage"]["prompt_tokens"] for turn in turns),
        "output_tokens": sum(turn["usage"]["completion_tokens"] for turn in turns),
        "classes": dict(Counter(turn["class"] for turn in turns)),
        "marks": dict(Counter(mark for turn in turns for mark in turn["marks"])),
        "ended": ended,
        "refused": {},
        "failure_classes": dict(Counter(row["class"] for row in failures)),
        "sources": by_source.counts(),
        "fingerprint": {
            "content": {"model": {"name": "org/Model-27B"}, "dtype": "bfloat16", "context_length": 8192},
            "speed": [{"server": "server 0", "version": "0.5.23", "max_running_requests": 64}],
        },
    }
    files.write_json(run.sidecar(chunk), sidecar)
    found: Sidecar = sidecar
    return found


def _entry(path: Path, rows: int) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": files.sha256_file(path), "rows": rows}


def _write_records(run: Run, counts: Counter[str], prompts: int) -> None:
    sources = [
        {
            "source": name,
            "asked": prompts * share // 100,
            "quota": prompts * share // 100,
            "unavailable": None,
            "rows": counts[name] * 2,
            "rejected": {"empty_prompt": 1},
            "available": counts[name],
            "dropped": {"duplicate": 3},
            "own": counts[name],
            "stood_in_for": {},
            "filled": 0,
            "not_drawn": 0,
            "substituted": {},
            "taken": counts[name],
        }
        for name, (share, _) in SOURCES.items()
    ]
    files.write_json(run.manifest_json, {"run": run.name, "taken": sum(counts.values()), "sources": sources})
    locked = {name: {"shard": f"sources/{name}-1", "revision": "c" * 40, "files": []} for name in SOURCES}
    files.write_json(run.lock, {"run": run.name, "format": 1, "identity": {}, "sources": locked})


def _write_training(run: Run) -> None:
    folder = run.folder / "training" / "1a2b3c4d"
    with Shards(folder, "train", writers(["parquet", "jsonl"], Origin(True, "made"))) as shards:
        for row in files.read_jsonl_zst(run.completions(run.chunks()[0])):
            turn = row["turns"][0]
            prompt, response = turn["prompt_token_ids"], turn["response_token_ids"]
            ids = np.array(prompt + response, dtype=np.int32)
            shards.add(Row(row["prompt_id"], 0, 0, row["source"], turn["class"], ids, len(prompt)), len(ids))
    index = {"files": shards.entries, "rows": shards.rows, "tokens": shards.tokens}
    files.write_json(folder / "training.json", index | {"supervised_tokens": 0, "dropped": {}})


def _write_progress(run: Run, chance: random.Random, sidecars: list[Sidecar]) -> None:
    """Three hours of two servers, of which the second dies after one and is away for ten minutes."""
    lines, count = [], 1080
    tokens = sum(sidecar["output_tokens"] for sidecar in sidecars)
    for step in range(count):
        at = BEGAN + 10 * (step + 1)
        servers: dict[str, Any] = {}
        for number in range(2):
            if number == 1 and 360 <= step < 420:
                continue
            fill = min(1.0, (step + 1) / 12, (count - step) / 30)
            made = round(tokens / count / 2 * fill * chance.uniform(0.6, 1.4))
            servers[f"server {number}"] = {
                "number": number,
                "start": 2 if number and step >= 420 else 1,
                "seats": 64,
                "in_flight": round(64 * fill),
                "turns": max(20, made // 700),
                "prompt_tokens": made // 4,
                "output_tokens": made,
            }
        turns = sum(server["turns"] for server in servers.values())
        cut = round(turns * (0.05 + 0.1 * step / count))
        dead = {"server": "server 1", "at": BEGAN + 3600, "start": 1, "reason": "out of memory </script>"}
        line = {"at": at, "seconds": 10.0, "servers": servers, "deaths": [dead] if step == 360 else []}
        lines.append(line | {"classes": {"complete": turns - cut, "cut_in_thinking": cut}, "failed": {"too_long": 1}})
    raw = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
    files.write_bytes(run.folder / "progress.jsonl", raw)
    spans = [("sources", 0, 60), ("prompts", 60, 90), ("completions", 90, 10_800), ("training", 10_800, 10_900)]
    stages = [{"stage": stage, "start": BEGAN + start, "end": BEGAN + end} for stage, start, end in spans]
    files.write_bytes(run.folder / "timings.jsonl", b"".join(orjson.dumps(one) + b"\n" for one in stages))


def _write_summary(run: Run, sidecars: list[Sidecar], prompts: int) -> None:
    totals: dict[str, Counter[str]] = {key: Counter() for key in ("classes", "marks", "failure_classes")}
    for sidecar in sidecars:
        for key, counter in totals.items():
            counter.update(sidecar[key])  # type: ignore[literal-required]
    tokens = sum(sidecar["output_tokens"] for sidecar in sidecars)
    files.write_json(
        run.summary,
        {
            "run": run.name,
            "prompts": prompts,
            "samples": 1,
            "completions": sum(sidecar["completions"]["rows"] for sidecar in sidecars),
            "failures": sum(sidecar["failures"]["rows"] for sidecar in sidecars),
            "redrives": 0,
            "turns": totals["classes"].total(),
            **{key: dict(counter) for key, counter in totals.items()},
            "ended": {"complete": prompts},
            "refused": {},
            "checked": {"turns": 256, "drift": {"prompt": 0, "text": 0}, "first": None, "why_not": None},
            "alarms": ["server 1: more and more turns are cut_in_thinking"],
            "prompt_tokens": sum(sidecar["prompt_tokens"] for sidecar in sidecars),
            "output_tokens": tokens,
            "tokens_per_second": round(tokens / 10_710, 1),
            "training_rows": 100,
            "supervised_tokens": 1000,
            "training_dropped": {"class cut_in_thinking": 9},
            "supervised_tokens_dropped": {"class cut_in_thinking": 9000, "cut at max_tokens": 12},
            "windows": [
                {"window": 2048, "longer_rows": 7, "lost": {}, "share": {"right": 0.25, "supervised": 0.2, "drop": 0.5}}
            ],
            "draft_vocabulary": {"size": 32, "coverage": {"32": 0.987}},
            "objects_published": 0,
            "seconds": {"completions": 10_710.0, "sources": 60.0, "prompts": 30.0, "training": 100.0},
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the folder of a finished run that never was.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--ids", type=int, default=40)
    parser.add_argument("--nasty", action="store_true")
    args = parser.parse_args()
    print(make(args.results, args.prompts, args.chunks, args.ids, nasty=args.nasty).folder)

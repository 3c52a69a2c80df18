"""Filters of prompts: counting tokens, and looking for benchmark text.

`python tests/benchmarks/lengths.py [FOLDER]` prints two tables in CPU seconds, so that a busy machine does not show.
FOLDER holds a tokenizer with a chat template, by default the embedded model's, which the main job made.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from transformers import AutoTokenizer

from workflow_scripts import files
from workflow_scripts.prompts.decontaminate import BenchmarkRow, Decontaminate
from workflow_scripts.prompts.lengths import PROMPTS_AT_ONCE, Counter

PROMPTS = 10_000
BENCHMARK_ROWS = 20_000
SYSTEM = "You are a helpful assistant."


def vocabulary() -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]


def text(chance: random.Random, words: list[str], low: int, high: int) -> list[str]:
    return chance.choices(words, k=chance.randint(low, high))


def measured(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call returns, the seconds by the clock, and those of all processors."""
    start, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - start, time.process_time() - cpu


def counting(folder: Path) -> None:
    chance, words = random.Random(1), vocabulary()
    prompts: list[tuple[Any, None]] = [
        (
            [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": " ".join(text(chance, words, 20, 400))},
            ],
            None,
        )
        for _ in range(PROMPTS)
    ]
    counter = Counter(AutoTokenizer.from_pretrained(folder), {})
    reference: Any = AutoTokenizer.from_pretrained(folder)

    def ours() -> list[int | None]:
        return [
            tokens
            for start in range(0, PROMPTS, PROMPTS_AT_ONCE)
            for tokens in counter.count(prompts[start : start + PROMPTS_AT_ONCE])
        ]

    def one_by_one() -> list[int]:
        return [
            len(reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
            for messages, _ in prompts
        ]

    print(f"{'counting':<40} {'tokens':>12} {'seconds':>8} {'CPU':>8} {'tokens per CPU second':>22}")
    results = []
    for name, call in (("batched, all cores", ours), ("apply_chat_template, one by one", one_by_one)):
        tokens, seconds, cpu = measured(call)
        results.append(tokens)
        print(f"{name:<40} {sum(tokens):>12,} {seconds:>8.1f} {cpu:>8.1f} {sum(tokens) / cpu:>22,.0f}")
    assert results[0] == results[1]


def decontaminating() -> None:
    """Planted: a tenth of the prompts hold 13 to 60 words of a row, in other case and spacing."""
    chance, words = random.Random(2), vocabulary()
    rows = [text(chance, words, 20, 120) for _ in range(BENCHMARK_ROWS)]
    planted = {}
    prompts = []
    for at in range(PROMPTS):
        prompt = text(chance, words, 20, 400)
        if at % 10 == 0:
            planted[at] = chance.randrange(len(rows))
            start = chance.randint(0, len(rows[planted[at]]) - 13)
            place = chance.randint(0, len(prompt))
            prompt[place:place] = rows[planted[at]][start : start + chance.randint(13, 60)]
        prompts.append(json.dumps([{"role": "user", "content": ",  ".join(prompt).title()}]))
    frame = pl.DataFrame({"messages": prompts})
    found, _, building = measured(
        lambda: Decontaminate(BenchmarkRow(f"b:{at}", [" ".join(row)]) for at, row in enumerate(rows))
    )
    hits, _, checking = measured(lambda: found.check(frame))
    right = sum(hits[at].repeats == f"b:{row}" for at, row in planted.items() if at in hits)
    print(f"\n{BENCHMARK_ROWS:,} benchmark rows, {PROMPTS:,} prompts, {len(planted):,} of them contaminated")
    print(f"CPU seconds to build {building:.1f}, per 1,000 prompts {checking / PROMPTS * 1000:.3f}")
    print(f"recall {right / len(planted):.4f}, precision {right / len(hits):.4f}")


if __name__ == "__main__":
    made = sorted(files.cache_home().glob("models/SmolLM2-135M-Instruct-*/tokenizer.json"))
    counting(Path(sys.argv[1]) if len(sys.argv) > 1 else made[-1].parent)
    decontaminating()

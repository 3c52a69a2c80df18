"""The export of training shards against a script that tokenizes the same text again.

`nice python -m tests.benchmarks.training [TOKENS] [FOLDER]` makes completions of English (Python's own help) with so
many tokens in all, 100 million unless said, and exports them. Of the first 20 million the fast tokenizer makes the same
rows of the messages alone, a thousand at a time. Each way runs in a process of its own. FOLDER holds a tokenizer with a
chat template, by default the embedded model's.
"""

import json
import os
import pydoc_data.topics
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer

from workflow_scripts import files
from workflow_scripts.run import Run
from workflow_scripts.training.export import export

ROWS_OF_CHUNK = 500
DISTINCT = 10  # chunks; the others repeat them, far beyond what zstd looks back
AGAIN_TOKENS = 20_000_000
PROMPT, ANSWER = 2_000, 7_000  # characters


def answered(folder: Path, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Completions of one chunk, with the ids that a server would give."""
    text = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def some(characters: int) -> str:
        start = chance.randrange(len(text) - characters)
        return text[start : start + characters]

    for _ in range(ROWS_OF_CHUNK):
        asked, said = {"role": "user", "content": some(PROMPT)}, {"role": "assistant", "content": some(ANSWER)}
        prompt: Any = tokenizer.apply_chat_template([asked], tokenize=False, add_generation_prompt=True)
        ids, response = tokenizer([prompt, f"{said['content']}<|im_end|>"], add_special_tokens=False)["input_ids"]
        turn = {"class": "complete", "prompt_token_ids": ids, "response_token_ids": response}
        turn |= {"usage": {"prompt_tokens": len(ids), "completion_tokens": len(response)}}
        yield {
            "prompt_id": f"{chance.getrandbits(256):064x}",
            "sample": 0,
            "source": "help",
            "messages": [asked, said],
            "tools": None,
            "turns": [turn],
        }


def text_of(run: Run, chunk: str) -> Path:
    """The messages of a chunk's completions alone."""
    return run.folder / "text" / f"{chunk}.jsonl.zst"


def make(run: Run, folder: Path, tokens: int) -> int:
    """Write chunks until there are so many tokens, and run.yaml; the number of tokens."""
    chance = random.Random(0)
    chunks: list[tuple[list[dict[str, Any]], int]] = []
    total = count = 0
    while total < tokens:
        if len(chunks) < DISTINCT:
            rows = list(answered(folder, chance))
            chunks.append((rows, sum(sum(row["turns"][0]["usage"].values()) for row in rows)))
        rows, held = chunks[count % len(chunks)]
        chunk = f"{count:05d}"
        files.write_jsonl_zst(run.completions(chunk), rows)
        files.write_jsonl_zst(text_of(run, chunk), ({"messages": row["messages"]} for row in rows))
        path = run.completions(chunk)
        entry = {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}
        sidecar = {"chunk": chunk, "completions": entry, "fingerprint": {"content": {}, "speed": []}}
        files.write_json(run.sidecar(chunk), sidecar)
        total, count = total + held, count + 1
    config = {
        "name": "made",
        "sources": {"help": {"path": "none.jsonl"}},
        "model": {"path": str(folder)},
        "chunks": {"count": count},
        "servers": {"urls": ["http://127.0.0.1:1"]},
    }
    files.write_json(run.folder / "run.yaml", config)
    return total


def tokenize_again(run: Run, folder: Path, out: Path) -> dict[str, int]:
    """What a script does that has only text: rendered twice and tokenized, a thousand conversations at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    every = (files.read_jsonl_zst(text_of(run, chunk)) for chunk in run.chunks())
    texts = (row["messages"] for rows in every for row in rows)
    schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.uint8()))])
    made = {"rows": 0, "tokens": 0}
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        while made["tokens"] < AGAIN_TOKENS and (batch := list(islice(texts, 1000))):
            prompts = [
                tokenizer.apply_chat_template(one[:-1], tokenize=False, add_generation_prompt=True) for one in batch
            ]
            whole = [tokenizer.apply_chat_template(list(one), tokenize=False) for one in batch]
            ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
            lengths = [len(one) for one in tokenizer(prompts, add_special_tokens=False)["input_ids"]]
            masks = [np.arange(len(one)) >= length for one, length in zip(ids, lengths, strict=True)]
            table = {"input_ids": ids, "loss_mask": [mask.astype(np.uint8) for mask in masks]}
            writer.write_table(pa.Table.from_pydict(table, schema=schema))
            made["rows"] += len(ids)
            made["tokens"] += sum(map(len, ids))
    return made


def measured(way: str, run: Run, folder: Path) -> None:
    """Print what a way took, as JSON; in a process of its own."""
    started = time.perf_counter()
    if way == "export":
        made = export(run, run.folder / "training")
    else:
        made = tokenize_again(run, folder, run.folder / "again.parquet")
    # Not ru_maxrss, which begins with that of the process which started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    told = {"rows": made["rows"], "tokens": made["tokens"], "seconds": time.perf_counter() - started}
    print(json.dumps(told | {"cpu": time.process_time(), "megabytes": int(status["VmHWM"].split()[0]) / 1024}))


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000
    default = next((files.cache_home() / "models").glob("SmolLM2*/tokenizer.json"), Path("none/none")).parent
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else default
    print("| way | rows | tokens | seconds | tokens/s | CPU seconds | tokens per CPU second | peak memory |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(Path(scratch) / "made-0")
        make(run, folder.absolute(), tokens)
        for way in ("export", "tokenized again"):
            command = [sys.executable, "-m", "tests.benchmarks.training", "--way", way, str(run.folder), str(folder)]
            environ = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
            told = json.loads(done.stdout.splitlines()[-1])
            print(
                f"| {way} | {told['rows']:,} | {told['tokens']:,} | {told['seconds']:.0f} | "
                f"{told['tokens'] / told['seconds']:,.0f} | {told['cpu']:.0f} | {told['tokens'] / told['cpu']:,.0f} | "
                f"{told['megabytes']:,.0f} MB |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        measured(sys.argv[2], Run(Path(sys.argv[3])), Path(sys.argv[4]))
    else:
        main()

"""A small run's completions, as an export reads them."""

from pathlib import Path
from typing import Any

import polars as pl

from workflow_scripts import files
from workflow_scripts.run import Run

PROMPTS = 10
APART = {"p1", "p4", "p9"}
VOCABULARY = 100


def turn(prompt: list[int], response: list[int], kind: str = "complete") -> dict[str, Any]:
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(response)}
    return {"class": kind, "prompt_token_ids": prompt, "response_token_ids": response, "usage": usage}


def completion(name: str, *turns: dict[str, Any], source: str = "a") -> dict[str, Any]:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}] * len(turns)
    return {"prompt_id": name, "sample": 0, "source": source, "messages": said, "tools": None, "turns": [*turns]}


def make_run(folder: Path, share: float = 0.0, content: dict[str, Any] | None = None, **training: Any) -> Run:
    """Two chunks of ten answers in all; prompt n has n + 1 tokens of response."""
    model = folder / "model"
    files.write_json(model / "config.json", {"vocab_size": VOCABULARY})
    files.write_json(model / "tokenizer.json", {})
    run = Run(folder / "made-0")
    config = {
        "name": "made",
        "sources": {"a": {"path": "a.jsonl"}, "b": {"path": "b.jsonl"}},
        "model": {"path": str(model)},
        "chunks": {"count": 2},
        "prompts": {"eval": share},
        "servers": {"urls": ["http://127.0.0.1:1"]},
        "training": {"min_supervised_tokens": 1, **training},
    }
    files.write_json(run.folder / "run.yaml", config)
    for chunk in run.chunks():
        numbers = range(int(chunk), PROMPTS, 2)
        write_chunk(run, chunk, [completion(f"p{n}", turn([1, 2], [3] * (1 + n))) for n in numbers], content)
    ids_of = [f"p{number}" for number in range(PROMPTS)]
    splits = ["eval" if prompt_id in APART else "train" for prompt_id in ids_of]
    pl.DataFrame({"prompt_id": ids_of, "split": splits}).write_parquet(run.manifest)
    return run


def write_chunk(run: Run, chunk: str, rows: list[dict[str, Any]], content: dict[str, Any] | None = None) -> None:
    """Its completions, and of the sidecar what an export reads."""
    files.write_jsonl_zst(run.completions(chunk), rows)
    path = run.completions(chunk)
    entry = {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}
    made = {"content": content or {}, "speed": []}
    files.write_json(run.sidecar(chunk), {"chunk": chunk, "completions": entry, "fingerprint": made})

"""What must hold of a run's folder after any death and resume, and of the machine: one audit for all tests."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from tests.standin.server import END, answer_to, calls_to, tokens
from workflow_scripts import files, identity, processes
from workflow_scripts.run import Run


def audit_run(run: Run, by_standin: bool) -> None:
    """Every (prompt_id, sample) is in completions or failures once, in order, as the sidecars and summary say.

    Where the stand-in gave the answers, each must be the one to its prompt.
    """
    manifest = pl.read_parquet(run.manifest, glob=False).sort("chunk", "position")
    samples = range(run.config.sampling.n)
    assert manifest["prompt_id"].is_unique().all()
    assert set(manifest["chunk"]) <= {int(chunk) for chunk in run.chunks()}
    completions: list[Any] = []
    failures: list[Any] = []
    for chunk in run.chunks():
        owed = [
            (prompt_id, sample)
            for prompt_id in manifest.filter(pl.col("chunk") == int(chunk))["prompt_id"]
            for sample in samples
        ]
        made, failed = _audit_chunk(run, chunk, owed)
        completions += made
        failures += failed
    for name in run.redrives():
        made, failed = _audit_chunk(run, name, [(row["prompt_id"], row["sample"]) for row in failures])
        assert {(row["prompt_id"], row["sample"]) for row in made + failed} == {
            (row["prompt_id"], row["sample"]) for row in failures
        }
        completions += made
        failures = failed
    for row in completions if by_standin else []:
        _audit_answer(row)
    summary = files.read_json(run.summary)
    assert summary["prompts"] == len(manifest)
    assert (summary["completions"], summary["failures"]) == (len(completions), len(failures))
    assert summary["prompts"] * len(samples) == summary["completions"] + summary["failures"]
    assert summary["failure_classes"] == Counter(row["class"] for row in failures)
    turns = [turn for row in completions for turn in row["turns"]]
    assert summary["turns"] == len(turns) and summary["ended"] == Counter(row["ended"] for row in completions)
    assert summary["output_tokens"] == sum(len(turn["response_token_ids"]) for turn in turns)
    _audit_training(run, completions)
    left = [path for path in run.results.rglob(".*") if path.name.endswith(".tmp")]
    assert left == []


def _audit_chunk(run: Run, chunk: str, owed: list[tuple[str, int]]) -> tuple[list[Any], list[Any]]:
    sidecar = files.read_json(run.sidecar(chunk))
    for kind, path in (("completions", run.completions(chunk)), ("failures", run.failures(chunk))):
        assert sidecar[kind]["sha256"] == files.sha256_file(path), path
        assert sidecar[kind]["bytes"] == path.stat().st_size, path
    assert sidecar["prompts_sha256"] == files.sha256_file(run.prompts(chunk))
    asked = {row["prompt_id"]: row["messages"] for row in files.read_jsonl_zst(run.prompts(chunk))}
    completions = list(files.read_jsonl_zst(run.completions(chunk)))
    failures = list(files.read_jsonl_zst(run.failures(chunk)))
    assert (sidecar["completions"]["rows"], sidecar["failures"]["rows"]) == (len(completions), len(failures))
    made = [(row["prompt_id"], row["sample"]) for row in completions]
    failed = [(row["prompt_id"], row["sample"]) for row in failures]
    assert sorted(made + failed) == sorted(owed), f"chunk {chunk}: an answer is missing, double or foreign"
    assert made == [key for key in owed if key in set(made)]
    assert failed == [key for key in owed if key in set(failed)]
    assert all(row["final"] for row in failures)
    for row in completions:
        _audit_history(row, asked[row["prompt_id"]], run.config.prompts.turns)
    return completions, failures


def _audit_history(row: Any, recorded: Any, turns: str) -> None:
    """New assistant turns, what was recorded of users, in order, and recorded results, each to a call of its own."""
    messages = row["messages"]
    assert [item["role"] for item in messages].count("assistant") == len(row["turns"]) > 0
    assert messages[-1]["role"] == "assistant"
    if turns == "first":
        assert messages[:-1] == recorded
        return
    said, asked = ([item for item in each if item["role"] in ("system", "user")] for each in (messages, recorded))
    assert said == asked[: len(said)] and (said == asked or row["ended"] != "complete")
    calls = [call["id"] for item in messages for call in item.get("tool_calls", ())]
    results = [item for item in messages if item["role"] == "tool"]
    assert len(set(calls)) == len(calls) and [item["tool_call_id"] for item in results] == calls[: len(results)]
    there = Counter(item["content"] for item in recorded if item["role"] == "tool")
    assert Counter(item["content"] for item in results) <= there


def _audit_answer(row: Any) -> None:
    """The answers are the stand-in's to this very history, token for token."""
    places = [at for at, item in enumerate(row["messages"]) if item["role"] == "assistant"]
    for at, turn in zip(places, row["turns"], strict=True):
        asked, said = row["messages"][:at], row["messages"][at]
        calls = calls_to({"messages": asked, "tools": row["tools"]})
        whole = [*tokens(json.dumps(calls) if calls else answer_to(asked)), END]
        ids = turn["response_token_ids"]
        assert ids == whole[: len(ids)] and (ids == whole or turn["finish_reason"] == "length")
        if calls:
            assert [call["function"]["name"] for call in said["tool_calls"]] == [call["name"] for call in calls]
        else:
            assert said["content"].encode() == bytes(token - 3 for token in ids if token != END)
        assert turn["prompt_token_ids"] == tokens("".join(f"<{item['role']}>{item['content']}" for item in asked))


def _audit_training(run: Run, completions: list[Any]) -> None:
    training = run.config.training
    expected = {}
    for row in completions:
        for number, turn in enumerate(row["turns"]):
            prompt, response = turn["prompt_token_ids"], turn["response_token_ids"]
            ids = (prompt + response)[: training.max_tokens]
            mask = ([0] * len(prompt) + [1] * len(response))[: training.max_tokens]
            if turn["class"] in training.keep and sum(mask) >= training.min_supervised_tokens:
                expected[row["prompt_id"], row["sample"], number] = (ids, mask)
    index = run.folder / "training" / identity.training_hash(run.config, run.redrives()) / "training.json"
    rows: list[Any] = []
    for entry in files.read_json(index)["files"]:
        path = index.parent / entry["path"]
        assert entry["sha256"] == files.sha256_file(path)
        rows += pq.read_table(path).to_pylist() if path.suffix == ".parquet" else []
    assert len(rows) == len(expected)
    found = {(row["prompt_id"], row["sample"], row["turn"]): (row["input_ids"], row["loss_mask"]) for row in rows}
    assert found == expected


def processes_of(folder: Path) -> dict[int, str]:
    """The live processes whose folder, arguments or environment lie in `folder`: {pid: arguments}."""
    ours = {os.getpid(), *processes.ancestors(os.getpid())}
    name = str(folder).encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            argv = (entry / "cmdline").read_bytes()
            if not argv:  # a zombie
                continue
            signs = [bytes((entry / "cwd").readlink()), argv, (entry / "environ").read_bytes()]
        except OSError:  # it ended meanwhile, or is another user's
            continue
        if any(name in sign for sign in signs):
            found[int(entry.name)] = argv.replace(b"\0", b" ").decode(errors="replace")
    return found

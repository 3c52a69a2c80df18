"""What a run will take, told before it begins: tokens by source, hours of servers, disk and store. A forecast only.

The lengths of answers are those that earlier runs of the same model in the results folder had, by source. Where a
source has none, every answer is taken to be as long as it may: `max_tokens`. So is one that was cut at a lower limit.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, timed
from workflow_scripts.prompts import manifest_file
from workflow_scripts.reporting.forecast import BYTES_PER_ANSWER, BYTES_PER_TOKEN
from workflow_scripts.run import Run

EARLIER_RUNS = 3  # the newest that fit
EARLIER_CHUNKS = 8  # of each, evenly spaced
SAMPLED_PROMPTS = 4000
CHARACTERS_PER_TOKEN = 4
STORED_BYTES_PER_TOKEN = 4  # of an answer: in its compressed chunk and its training shard
BYTES_OF_FORMAT = {"parquet": 0, "jsonl": 8, "conversations": 4}  # more for a token of a training row, prompts' too


@dataclass
class Measured:
    """What earlier runs had: answers and their tokens by source, and the newest measured rate with its run."""

    runs: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    rate: float | None = None  # output tokens a second, of all servers
    rate_of: Run | None = None

    def mean(self, source: str) -> float | None:
        """Output tokens of an answer."""
        count = self.answers[source]
        return self.tokens[source] / count if count else None


def look_back(run: Run) -> Measured:
    """What the newest runs of the same model and thinking had. Those that can't be read are passed over."""
    found = Measured()
    for other in _siblings(run):
        try:
            if not _fits(run, other):
                continue
            made = [chunk for chunk in other.chunks() if other.sidecar(chunk).exists()]
            if not made:
                continue
            answers, tokens = _lengths(
                other, made[:: -(-len(made) // EARLIER_CHUNKS)], run.config.sampling.tokens_of_turns()[-1]
            )
            rate = files.read_json(other.summary).get("tokens_per_second") if other.summary.exists() else None
            found.runs.append(other.name)
            found.answers.update(answers)
            found.tokens.update(tokens)
            if found.rate is None and rate:
                found.rate, found.rate_of = rate, other
        except (PlainError, KeyError, TypeError, ValueError):
            continue
        if len(found.runs) == EARLIER_RUNS:
            break
    return found


def _siblings(run: Run) -> Iterator[Run]:
    """The other runs of the results folder, the newest first."""
    locks = [lock for lock in run.results.glob("*/lock.json") if not lock.parent.is_symlink()]
    for lock in sorted(locks, key=lambda path: path.stat().st_mtime, reverse=True):
        if lock.parent.name != run.name and (lock.parent / "run.yaml").exists():
            yield Run(lock.parent)


def _fits(run: Run, other: Run) -> bool:
    mine, theirs = run.config, other.config
    return (mine.model.path, mine.model.revision, mine.sampling.thinking, mine.prompts.turns) == (
        theirs.model.path,
        theirs.model.revision,
        theirs.sampling.thinking,
        theirs.prompts.turns,
    )


def _lengths(other: Run, chunks: list[str], most: int) -> tuple[Counter[str], Counter[str]]:
    """Answers by source, and their tokens, each turn's `most` at most; nobody knows where one cut there would end."""
    limit = other.config.sampling.max_tokens
    answers, tokens = Counter[str](), Counter[str]()
    for chunk in chunks:
        for row in files.read_jsonl_zst(other.completions(chunk)):
            answers[row["source"]] += 1
            lengths = (turn["usage"]["completion_tokens"] for turn in row["turns"])
            tokens[row["source"]] += sum(most if length >= limit else min(length, most) for length in lengths)
    return answers, tokens


def characters(run: Run) -> dict[str | None, float]:
    """Characters of a prompt on average, tools included, by source and, as None, of all: from a sample of chunks.

    Empty where no file of prompts is here: those of a run that is all in the bucket are not made again.
    """
    chunks = [chunk for chunk in run.chunks() if run.prompts(chunk).exists()]
    manifest = manifest_file.read(run, ["chunk"])
    step = max(1, len(manifest) // SAMPLED_PROMPTS)
    counts, lengths = Counter[str | None](), Counter[str | None]()
    for chunk in chunks[::step]:
        for prompt in files.read_jsonl_zst(run.prompts(chunk)):
            length = sum(len(message["content"]) for message in prompt["messages"])
            length += len(orjson.dumps(prompt["tools"])) if prompt["tools"] else 0
            for key in (prompt["source"], None):
                counts[key] += 1
                lengths[key] += length
    return {key: lengths[key] / count for key, count in counts.items()}


def turns_of_prompts(run: Run) -> dict[str | None, float]:
    """Assistant turns of a recorded conversation on average, one at least, by source and, as None, of all."""
    counts, turns = Counter[str | None](), Counter[str | None]()
    chunks = run.chunks()
    step = max(1, len(manifest_file.read(run, ["chunk"])) // SAMPLED_PROMPTS)
    for chunk in chunks[::step]:
        for prompt in files.read_jsonl_zst(run.prompts(chunk)):
            recorded = sum(message["role"] == "assistant" for message in prompt["messages"])
            for key in (prompt["source"], None):
                counts[key] += 1
                turns[key] += max(1, recorded)
    return {key: turns[key] / count for key, count in counts.items()}


def estimate(run: Run) -> dict[str, Any]:
    """estimate.json. Raises PlainError if the run has no manifest or no chunks of prompts."""
    config = run.config
    manifest = manifest_file.read(run, ["source", "tokens"])
    counted = manifest["tokens"].null_count() == 0
    typical = {} if counted else characters(run)
    most = config.sampling.tokens_of_turns()[-1]
    turns = turns_of_prompts(run) if config.prompts.turns == "all" else {}
    earlier = look_back(run)
    sources = []
    for (source,), rows in manifest.group_by(["source"], maintain_order=True):
        mean = earlier.mean(str(source))
        uncounted = rows["tokens"].null_count()
        guess = typical.get(str(source), typical.get(None, 0.0)) / CHARACTERS_PER_TOKEN
        answers = len(rows) * config.sampling.n
        asked = turns.get(str(source), turns.get(None, 1.0))  # turns of an answer
        sources.append(
            {
                "source": source,
                "prompts": len(rows),
                "prompt_tokens": int(rows["tokens"].sum() or 0) + round(uncounted * guess),
                "prompt_tokens_counted": uncounted == 0,
                "output_tokens": round(answers * (asked * most if mean is None else mean)),
                "answers_looked_at": earlier.answers[str(source)],
            }
        )
    sources.sort(key=lambda row: list(config.sources).index(row["source"]) if row["source"] in config.sources else 1e9)
    output = sum(row["output_tokens"] for row in sources)
    answers = len(manifest) * config.sampling.n
    prompts_bytes = sum(run.prompts(chunk).stat().st_size for chunk in run.chunks() if run.prompts(chunk).exists())
    stored = prompts_bytes * 2 + output * STORED_BYTES_PER_TOKEN + run.manifest.stat().st_size
    prompt_tokens = sum(row["prompt_tokens"] for row in sources)
    formats = sum(BYTES_OF_FORMAT[name] for name in config.training.formats)
    more = round((prompt_tokens * config.sampling.n + output) * formats)
    return {
        "run": run.name,
        "prompts": len(manifest),
        "samples": config.sampling.n,
        "sources": sources,
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_counted": counted,
        "output_tokens": output,
        **_time(earlier, output),
        "disk_bytes": answers * BYTES_PER_ANSWER + output * BYTES_PER_TOKEN + more,
        "store_bytes": None if config.publish.store == "none" else stored + more,
        "earlier_runs": earlier.runs,
        "assumptions": _assumptions(run, sources, earlier, None if counted else typical),
    }


def _time(earlier: Measured, output: int) -> dict[str, Any]:
    """Hours at the newest measured rate, and of GPUs where that run's config says how many it had; else null."""
    if not earlier.rate or earlier.rate_of is None:
        return {"tokens_per_second": None, "measured_in": None, "hours": None, "gpu_hours": None}
    servers = earlier.rate_of.config.servers
    known = isinstance(servers.count, int) and not servers.urls and servers.engine == "sglang"
    gpus = servers.count * servers.gpus_per_server if known and isinstance(servers.count, int) else None
    hours = output / earlier.rate / 3600
    return {
        "tokens_per_second": earlier.rate,
        "measured_in": earlier.rate_of.name,
        "hours": round(hours, 2),
        "gpu_hours": None if gpus is None else round(hours * gpus, 2),
    }


def _assumptions(
    run: Run, sources: list[dict[str, Any]], earlier: Measured, typical: dict[str | None, float] | None
) -> list[str]:
    """What the numbers rest on, a line each. `typical`: what prompts without a count go by, if there are any."""
    lines = []
    unknown = [row["source"] for row in sources if not row["answers_looked_at"]]
    if len(unknown) < len(sources):
        lines.append(f"answers: as long as in {', '.join(earlier.runs)}, by source")
    if unknown:
        each = "each" if run.config.prompts.turns == "first" else "for each recorded turn"
        which = f"answers of {', '.join(unknown)}" if len(unknown) < len(sources) else "answers"
        lines.append(
            f"{which}: {run.config.sampling.tokens_of_turns()[-1]:,} tokens {each} (sampling.max_tokens), the most "
            f"they can be; no "
            f"earlier run of this model here has any"
        )
    if typical:
        lines.append(f"prompts that no tokenizer counted: {CHARACTERS_PER_TOKEN} characters a token, from a sample")
    elif typical is not None:
        lines.append("prompts that no tokenizer counted: 0 tokens, for none of their files is here to be looked at")
    lines.append(
        f"disk: {BYTES_PER_TOKEN} bytes a token and {BYTES_PER_ANSWER:,} an answer, journals included; store: "
        f"{STORED_BYTES_PER_TOKEN} bytes a token"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate what a run will take, from its manifest and earlier runs.")
    parser.add_argument("estimate", type=Path, help="results/RUN/estimate.json")
    path = parser.parse_args().estimate
    run = Run.holding(path)
    with timed(run.folder, "prompts"):
        files.write_json(path, estimate(run))


if __name__ == "__main__":
    run_job(main)

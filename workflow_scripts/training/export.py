"""Completions become training shards: token for token what the server saw and said.

With `training.answers: recorded` there are no completions: what the datasets recorded is exported, off-policy.
"""

import argparse
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.prompts import manifest_file
from workflow_scripts.publishing.restore import restore_training
from workflow_scripts.reporting.accounting import check_file
from workflow_scripts.reporting.table import training_lines
from workflow_scripts.run import Run
from workflow_scripts.serving import builds
from workflow_scripts.training import conversations, target, vocabulary
from workflow_scripts.training.rows import Rows
from workflow_scripts.training.shards import Origin, Shards, entry, writers

SPLITS = ("train", "eval")
REMEDIES = {
    "generated": "Move the files of chunk {chunk} and its journal away to make it again",
    "recorded": "The tokenizer is not the model's: see model.tokenizer",
}
TORCH_FILES = Path(__file__).with_name("torch_files.py")


def export(run: Run, folder: Path) -> dict[str, Any]:
    """Write the shards of both splits into `folder`, and what else `training` asks for. Equal input, equal bytes.

    Returns the index: what training.json holds. PlainError for what no trainer should learn from.
    """
    training = run.config.training
    size = target.vocabulary(run, needed=training.draft_vocabulary is not None)
    origin, every = _answered(run)
    rows = Rows(training, size, REMEDIES[training.answers])
    frequencies = None
    if training.draft_vocabulary is not None and size is not None:
        vocabulary.check_size(training.draft_vocabulary, size)
        frequencies = vocabulary.Frequencies(size)
    apart = _set_apart(run)
    formats = writers(training.formats, origin)
    talk = formats.pop("conversations", None)
    with ExitStack() as stack:
        shards = {name: stack.enter_context(Shards(folder, name, formats)) for name in SPLITS}
        talks = {
            name: stack.enter_context(Shards(folder, name, {"conversations": talk} if talk else {})) for name in SPLITS
        }
        for answered in every:
            name = "eval" if answered["prompt_id"] in apart else "train"
            tokens, turns = 0, []
            for row in rows.of(answered):
                shards[name].add(row, len(row.ids))
                if frequencies is not None and name == "train":
                    frequencies.add(row)
                turns.append(row.turn)
                tokens = len(row.ids)
            if talk and (line := conversations.conversation(answered, turns, origin)):
                talks[name].add(line, tokens)
    made = [each for written in (shards, talks) for name in SPLITS for each in written[name].entries]
    mapped = {}
    if frequencies is not None and training.draft_vocabulary is not None:
        paths, mapped["draft_vocabulary"] = vocabulary.write(frequencies, training.draft_vocabulary, folder)
        paths += _torch_files(run, folder, training.draft_vocabulary)
        made += [entry(path, folder, None) for path in paths]
    _remove_stale(folder, made)
    return {
        "answers": training.answers,
        "on_policy": origin.on_policy,
        "fingerprint": origin.fingerprint,
        "vocabulary": size,
        "files": made,
        "rows": rows.account.rows_kept,
        "tokens": sum(shards[name].tokens for name in SPLITS),
        **rows.account.report(),
        "windows": rows.costs.report(),
        **mapped,
    }


def _answered(run: Run) -> tuple[Origin, Iterable[Mapping[str, Any]]]:
    """What is exported, and what made it."""
    if run.config.training.answers == "recorded":
        from workflow_scripts.training.recorded import Recorded  # loads transformers

        recorded = Recorded(run)
        return Origin(False, recorded.fingerprint), recorded.conversations()
    chunks = [*run.chunks(), *run.redrives()]
    content = target.fingerprint(run, chunks)
    target.check_tokenizer(run, content)
    return Origin(True, target.content_id(content)), _completions(run, chunks)


def _completions(run: Run, chunks: list[str]) -> Iterator[Mapping[str, Any]]:
    for chunk in chunks:
        check_file(run.completions(chunk), files.read_json(run.sidecar(chunk), "completions")["completions"])
        for answered in files.read_jsonl_zst(run.completions(chunk)):
            yield {**answered, "chunk": chunk}


def _set_apart(run: Run) -> set[str]:
    """The prompts of the evaluation set, by id."""
    if not run.config.prompts.eval:
        return set()
    manifest = manifest_file.read(run, ["prompt_id", "split"])
    return set(manifest.filter(pl.col("split") == "eval")["prompt_id"])


def _torch_files(run: Run, folder: Path, size: int) -> list[Path]:
    """What torch must write, by the environment of the servers that are launched here; else how to make it is said.

    Where answers came from elsewhere, none need be here, nor can be without a GPU: it is not built for this.
    """
    python = None
    if run.config.training.answers == "generated" and not run.config.servers.urls:
        python = builds.python_here(run.config.servers)
    if python is None:
        say(f"no servers' environment: `PYTHON {TORCH_FILES} {folder} {size}` with any torch writes the .pt files")
        return []
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-P", TORCH_FILES, folder, str(size)], env=environ, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise PlainError(f"{TORCH_FILES.name} failed: {' '.join(done.stderr.splitlines()[-1:])}")
    return [folder / name for name in vocabulary.torch_names(size)]


def _remove_stale(folder: Path, made: list[dict[str, Any]]) -> None:
    """Remove shards of a longer export into this folder; its index is about to be replaced."""
    there = {path for name in SPLITS for pattern in (f"{name}-*.*", f"*/{name}/*.*") for path in folder.glob(pattern)}
    for stale in there - {folder / each["path"] for each in made}:
        stale.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="Export a run's completions as token-exact training shards.")
    parser.add_argument("index", type=Path, help="results/RUN/training/HASH/training.json, written after the shards")
    index = parser.parse_args().index
    run = Run.holding(index)
    with timed(run.folder, "training"):
        if restore_training(run, index):
            say("training shards: fetched from the bucket and verified")
            return
        result = export(run, index.parent)
        files.write_json(index, result)
        if not result["on_policy"]:
            say("off-policy: the datasets' own answers")
        for name, value in training_lines(result, result["rows"], result["dropped"]):
            say(f"{name}: {value}")


if __name__ == "__main__":
    run_job(main)

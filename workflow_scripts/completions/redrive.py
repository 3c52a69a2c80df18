"""Prompts that failed for good, asked again: as one more chunk, r1, r2, ..., beside the finished ones.

A redrive has a chunk's files under its own name: completions/r1.jsonl.zst, r1.failures.jsonl.zst, r1.json. It owes
what failed in the chunks and in the redrives before it and was answered in none: that follows from their files alone,
so that any machine finds the same. Finished files never change; an account is the union of all.
"""

from collections.abc import Iterable
from pathlib import Path

from workflow_scripts import files
from workflow_scripts.completions.finish import Key
from workflow_scripts.errors import PlainError
from workflow_scripts.records import Failure, Prompt
from workflow_scripts.run import Run


def standing_failures(run: Run, redrives: Iterable[str]) -> dict[Key, Failure]:
    """What failed and was answered in none of the redrives, in the chunks' order, each with its last failure."""
    failures: dict[Key, Failure] = {}
    for chunk in run.chunks():
        failures |= {_key(row): row for row in _failures(run, chunk)}
    for name in redrives:
        owed = set(failures)
        again = {_key(row): row for row in _failures(run, name)}
        answered = {_key(row) for row in files.read_jsonl_zst(run.completions(name))}
        if answered | set(again) != owed or answered & set(again):
            raise PlainError(
                f"{run.completions(name)} and its failures are not the answers to what had failed before: files of "
                f"another run, or some are lost. Move all files of {name} away to ask again"
            )
        failures = {key: again[key] for key in failures if key in again}
    return failures


def owed(run: Run, name: str) -> list[Key]:
    """What the redrive `name` owes."""
    return list(standing_failures(run, run.redrives_before(name)))


def write_prompts(run: Run, name: str) -> Path:
    """The redrive's prompts file: of each prompt that failed in some sample, once."""
    wanted = {prompt_id for prompt_id, _ in owed(run, name)}
    files.write_jsonl_zst(run.prompts(name), _prompts(run, wanted))
    return run.prompts(name)


def _prompts(run: Run, wanted: set[str]) -> Iterable[Prompt]:
    from workflow_scripts.completions.generate import prompts_file

    for chunk in run.chunks():
        if _failures(run, chunk):
            for prompt in files.read_jsonl_zst(prompts_file(run, chunk)):
                if prompt["prompt_id"] in wanted:
                    yield prompt


def _failures(run: Run, chunk: str) -> list[Failure]:
    """The chunk's failures; only its sidecar is read where there are none."""
    if files.read_json(run.sidecar(chunk), "failures")["failures"]["rows"] == 0:
        return []
    return list(files.read_jsonl_zst(run.failures(chunk)))


def _key(row: Failure) -> Key:
    return row["prompt_id"], row["sample"]

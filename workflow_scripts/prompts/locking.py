"""What prompts are drawn against, looked up once for a run, before the first job: lock.json's `prompts`."""

from typing import Any

from workflow_scripts.prompts import inputs
from workflow_scripts.prompts.inputs import Input
from workflow_scripts.prompts.tokenizer import lock_tokenizer
from workflow_scripts.run import Run


def lock_inputs(run: Run, planned: dict[str, list[Input]]) -> dict[str, Any]:
    """What lock.json says of earlier prompts, benchmarks and the tokenizer; empty if there are none.

    PlainError if an S3 prefix or the tokenizer can't be had, and where a look at them tells that the manifest's job
    would fail: of earlier prompts at their first rows, of those in S3 only at their names.
    """
    config = run.config
    for entry in config.prompts.exclude:
        if not entry.startswith(inputs.S3):
            from workflow_scripts.prompts import exclude  # as all below: a plan doesn't need it, and it takes long

            for file in inputs.excluded_files(entry):
                exclude.reader(file.path, str(file.path))
    for entry in config.prompts.decontaminate.files:
        from workflow_scripts.prompts import benchmarks

        for file in inputs.benchmark_files(entry):
            for _ in benchmarks.read(file.path, config.prompts.decontaminate.columns):
                pass
    locked: dict[str, Any] = dict(planned)
    if any(entry["from"].startswith(inputs.S3) for entry in planned.get("exclude", [])):
        from workflow_scripts.prompts import earlier_s3

        locked["exclude"] = [
            earlier_s3.list_prefix(run, entry["from"]) if entry["from"].startswith(inputs.S3) else entry
            for entry in planned["exclude"]
        ]
    if (tokenizer := lock_tokenizer(config)) is not None:
        from workflow_scripts.prompts import lengths

        if lengths.open_lengths(run, tokenizer) is not None:
            locked["tokenizer"] = tokenizer
    return locked

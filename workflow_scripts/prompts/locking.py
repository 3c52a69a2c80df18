"""What prompts are drawn against, looked up once for a run, before the first job: lock.json's `prompts`."""

from typing import Any

from workflow_scripts.prompts import inputs
from workflow_scripts.prompts.inputs import Input
from workflow_scripts.prompts.tokenizer import lock_tokenizer
from workflow_scripts.run import Run


def lock_inputs(run: Run, planned: dict[str, list[Input]]) -> dict[str, Any]:
    """What lock.json says of earlier prompts, benchmarks and the tokenizer; empty if there are none.

    PlainError if an S3 prefix or the tokenizer can't be had.
    """
    locked: dict[str, Any] = dict(planned)
    if any(entry["from"].startswith(inputs.S3) for entry in planned.get("exclude", [])):
        from workflow_scripts.prompts import earlier_s3  # boto3 takes a second that a plan doesn't need

        locked["exclude"] = [
            earlier_s3.list_prefix(run, entry["from"]) if entry["from"].startswith(inputs.S3) else entry
            for entry in planned["exclude"]
        ]
    if (tokenizer := lock_tokenizer(run.config)) is not None:
        locked["tokenizer"] = tokenizer
    return locked

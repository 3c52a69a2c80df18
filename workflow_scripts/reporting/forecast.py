"""The disk that the rest of a run can need, told before it begins."""

import shutil
from pathlib import Path

from workflow_scripts import files
from workflow_scripts.run import Run

# A token takes about 6 bytes as an id in JSON and 4 as text in a journal, and less than a third of that again in the
# compressed chunk; a prompt is stored a few times over.
BYTES_PER_TOKEN = 13
BYTES_PER_ANSWER = 8_000


def answers_left(run: Run) -> int | None:
    """Answers that are still to be made: by the manifest, else by the config; None if neither says."""
    config = run.config
    if config.training.answers == "recorded":
        return 0
    takes = [source.take for source in config.sources.values() if source.take != "all"]
    prompts = config.prompts.total
    if run.manifest_json.exists():
        prompts = files.read_json(run.manifest_json, "taken")["taken"]
    elif prompts is None and len(takes) == len(config.sources):
        prompts = sum(takes)
    if prompts is None:
        return None
    chunks = run.chunks()
    left = sum(not run.sidecar(chunk).exists() for chunk in chunks)
    return -(-prompts * config.sampling.n * left // len(chunks))


def disk_line(run: Run) -> str | None:
    """A line for the user where the disk may fill up; None where there is room, or nothing is known."""
    answers = answers_left(run)
    if not answers:
        return None
    most = run.config.sampling.tokens_of_turns()[-1]
    needed = answers * (most * BYTES_PER_TOKEN + BYTES_PER_ANSWER)
    free = shutil.disk_usage(_existing(run.folder)).free
    if needed <= free:
        return None
    return (
        f"disk: {answers:,} answers of up to {most:,} tokens can take {needed / 1e9:,.1f} GB "
        f"in {run.results}, which has {free / 1e9:,.1f} GB free; make room, or choose another folder with `results`"
    )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())

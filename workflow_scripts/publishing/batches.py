"""Which chunks one publishing job takes: plain arithmetic, so that planning needs no network and no boto3."""

from workflow_scripts.run import is_redrive

BATCH = 50
"""Chunks in a batch: one job and one receipt each."""


def batch_names(chunk_count: int) -> list[str]:
    """The batches of a run with `chunk_count` chunks, as receipts are named: 0000, 0001, ..."""
    return [f"{number:04d}" for number in range(-(-chunk_count // BATCH))]


def batch_chunks(name: str, chunks: list[str]) -> list[str]:
    """The chunks of batch `name`: 0003 takes 150 to 199, a redrive itself. ValueError if the run has no such batch."""
    if is_redrive(name):
        return [name]
    first = int(name) * BATCH
    taken = chunks[first : first + BATCH] if first >= 0 else []
    if not taken:
        raise ValueError(f"no batch {name} in a run of {len(chunks)} chunks")
    return taken

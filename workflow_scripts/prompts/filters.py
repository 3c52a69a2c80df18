"""What a filter of prompts is: it looks at candidates of one shard, a batch at a time, before any of them is drawn."""

from typing import NamedTuple, Protocol

import polars as pl

from workflow_scripts.run import Run


class Hit(NamedTuple):
    """Why a candidate is dropped: `repeats` names what it meets (a prompt's id, FILE:ROW), `detail` shows it."""

    repeats: str | None
    detail: str


class Filter(Protocol):
    """One reason to drop prompts."""

    reason: str  # as the account and dropped.parquet name it: excluded, contaminated, too_long

    def check(self, candidates: pl.DataFrame) -> dict[int, Hit]:
        """The candidates to drop, by their index in the frame, which has a shard's columns (sources/shard.py).

        What is dropped depends on the candidate alone, never on the others in the batch.
        """


def filters_of(run: Run) -> list[Filter]:
    """The filters that a run asks for, in the order in which they look."""
    return []

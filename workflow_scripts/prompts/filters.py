"""What a filter of prompts is: it looks at candidates of one shard, a batch at a time, before any of them is drawn."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import polars as pl

from workflow_scripts.jobs import say
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


def stretches(lengths: Sequence[int], most: int, characters: int) -> Iterator[range]:
    """Candidates of these lengths, cut into stretches of `most`, and so many `characters`, or one candidate."""
    start = held = 0
    for at, length in enumerate(lengths):
        if at > start and (at - start == most or held + length > characters):
            yield range(start, at)
            start, held = at, 0
        held += length
    if start < len(lengths):
        yield range(start, len(lengths))


def filters_of(run: Run) -> list[Filter]:
    """The filters that the config asks for, the cheapest first, by what lock.json recorded of their inputs.

    PlainError if an input is not as recorded.
    """
    # Imported where they are used: transformers and boto3 take seconds.
    from workflow_scripts.prompts import decontaminate, exclude, lengths

    recorded = exclude.recorded_inputs(run)
    found: list[Filter] = []
    if "exclude" in recorded:
        found.append(exclude.open_exclude(run, recorded["exclude"]))
    if "decontaminate" in recorded:
        found.append(decontaminate.open_decontaminate(run, recorded["decontaminate"]))
    if "tokenizer" in recorded and (counted := lengths.open_lengths(run, recorded["tokenizer"])) is not None:
        found.append(counted)
    return found


def tokens(filters: list[Filter], prompts: pl.DataFrame) -> list[int | None]:
    """For the manifest: the tokens of prompts that the filters let pass, by their `first_id`; null if not counted."""
    from workflow_scripts.prompts.lengths import Lengths

    counting = next((each for each in filters if isinstance(each, Lengths)), None)
    if counting is None:
        return [None] * len(prompts)
    found = counting.tokens(prompts)
    if refused := found.count(None):
        why = f" ({counting.refusal})" if counting.refusal else ""
        say(
            f"{refused:,} of {len(found):,} prompts have no count of tokens, and are kept however long they are: the "
            f"chat template refuses them{why}, and so will the servers"
        )
    return found

"""Prompt ids as they are held in memory and journaled: of a later turn, only what the turn before it has not.

A prompt begins with most of what the turn before saw and said, so that all turns' ids, written out, grow with the
square of their number: a hundred calls of a tool in 50,000 tokens of context have 2.5 million. Files of completions
have them whole, and zstd finds the repeats.
"""

from workflow_scripts.records import Turn

MARK = b'"shared":'  # in the JSON of packed turns


def pack(turn: Turn, last: Turn | None) -> Turn:
    """The turn without the `shared` first ids of its prompt, which the last turn's prompt and response begin with too.

    The first turn stays as it is: nothing is before it.
    """
    if last is None:
        return turn
    ids, before = turn["prompt_token_ids"], last["prompt_token_ids"] + last["response_token_ids"]
    shared = next(
        (at for at, (one, other) in enumerate(zip(ids, before, strict=False)) if one != other),
        min(len(ids), len(before)),
    )
    return {**turn, "shared": shared, "prompt_token_ids": ids[shared:]}


def unpack(turns: list[Turn]) -> list[Turn]:
    """The turns with all ids of their prompts."""
    whole: list[Turn] = []
    before: list[int] = []
    for packed in turns:
        turn = packed.copy()
        turn["prompt_token_ids"] = before[: turn.pop("shared", 0)] + packed["prompt_token_ids"]
        before = turn["prompt_token_ids"] + turn["response_token_ids"]
        whole.append(turn)
    return whole

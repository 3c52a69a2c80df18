"""Whether stored conversations are what the server saw: a sample of turns, rendered and decoded by the tokenizer here.

A turn's prompt ids must be those of its history, its tools and its template's variables, and its response ids must
decode to its thoughts, its text and its calls. Training rows are made of the ids, so they are right all the same: drift
says that the stored text tells another history, as where a server was given another template.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workflow_scripts import files
from workflow_scripts.completions.decoding import says
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import exclude
from workflow_scripts.prompts import tokenizer as tokenizers
from workflow_scripts.prompts.rendering import Refused, encode, render, shown, variables
from workflow_scripts.records import Completion
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNKS = 8  # evenly spaced
TURNS_OF_CHUNK = 32


def check(run: Run) -> dict[str, Any]:
    """{"turns": looked at, "drift": {"prompt": n, "text": n}, "first": where the first is, "why_not": or null}."""
    found: dict[str, Any] = {"turns": 0, "drift": {"prompt": 0, "text": 0}, "first": None, "why_not": None}
    try:
        tokenizer = tokenizers.at_hand(run.config, exclude.recorded_inputs(run).get("tokenizer"))
    except PlainError as error:
        return found | {"why_not": str(error)}
    if tokenizer is None:
        return found | {"why_not": "the tokenizer is not at hand"}
    for completion, number in _sample(run):
        found["turns"] += 1
        for kind in drift(tokenizer, completion, number):
            found["drift"][kind] += 1
            found["first"] = found["first"] or f"{kind} of prompt {completion['prompt_id']}, turn {number}"
    return found


def _sample(run: Run) -> Iterator[tuple[Completion, int]]:
    """Turns of evenly spaced chunks, of each those of its first conversations: (completion, number of the turn)."""
    chunks = [*run.chunks(), *run.redrives()]
    for chunk in chunks[:: -(-len(chunks) // CHUNKS)]:
        left = TURNS_OF_CHUNK
        for completion in files.read_jsonl_zst(run.completions(chunk)):
            for number in range(min(left, len(completion["turns"]))):
                yield completion, number
            left -= len(completion["turns"])
            if left <= 0:
                break


def drift(tokenizer: "PreTrainedTokenizerBase", completion: Completion, number: int) -> list[str]:
    """What of a turn is not what it says: `prompt`, `text`, both or nothing."""
    turn = completion["turns"][number]
    places = [at for at, message in enumerate(completion["messages"]) if message["role"] == "assistant"]
    at = places[len(places) - len(completion["turns"]) + number]
    found = []
    try:
        text = render(
            tokenizer,
            completion["messages"][:at],
            shown(completion["tools"], turn["sampling"]),
            variables(turn["sampling"]),
        )
        if encode(tokenizer, text) != turn["prompt_token_ids"]:
            found.append("prompt")
    except Refused:
        found.append("prompt")
    decoded: Any = tokenizer.decode(
        turn["response_token_ids"], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    if not says(decoded, completion["messages"][at]):
        found.append("text")
    return found

"""Whether a candidate changes the answers: greedy ones to a few prompts, token by token, with log-probabilities.

No two batches are computed alike to the last bit, so greedy answers of one model may part where two tokens are nearly
as likely. That is a near-tie, and allowed: at the first token that differs, each of the two servers must have held both
tokens for nearly as likely. From there on the answers are of other histories, and tell nothing more.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from workflow_scripts.completions.conversation import Conversation
from workflow_scripts.completions.faults import Fault
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.config import Sampling
from workflow_scripts.records import Prompt
from workflow_scripts.sources.prompt_ids import prompt_side

PROMPTS = 16
TOKENS = 64
ALTERNATIVES = 5  # next-likely tokens that are asked for
# Of natural logarithms. Logits in bfloat16 of 16 to 32 are 0.125 apart; two of them, each off by one or two steps.
NEAR_TIE = 0.5
OWN = 2.0  # times the share of the first candidate's answers that differ from its own

Likeness = Literal["same", "near_tie", "different"]


class Token(NamedTuple):
    """A token as its server saw it: its log-probability, and those of the likeliest ones by their texts' bytes."""

    id: int
    text: bytes
    logprob: float
    likeliest: Mapping[bytes, float]


class Probe(Conversation):
    """One greedy turn, with the log-probabilities of what is said."""

    def __init__(self, prompt: Prompt, sampling: Sampling) -> None:
        super().__init__({**prompt, "messages": prompt_side(prompt["messages"])}, 0, sampling)
        self.said: list[Token] = []

    def request(self, model: str, rid: str) -> dict[str, Any]:
        asked = {"temperature": 0, "max_tokens": TOKENS, "logprobs": True, "top_logprobs": ALTERNATIVES}
        return super().request(model, rid) | asked

    def take(self, reply: Any, rid: str, who: Answerer, attempts: int, seconds: float) -> None:
        super().take(reply, rid, who, attempts, seconds)
        self.said = read(reply)


def read(reply: Any) -> list[Token]:
    """The tokens of a chat completion with `logprobs` and `return_token_ids` (SGLang 0.5.23). Fault if it has none."""
    try:
        choice = reply["choices"][0]
        ids, told = choice["response_token_ids"], choice["logprobs"]["content"]
        return [
            Token(
                one,
                bytes(entry["bytes"]),
                float(entry["logprob"]),
                {bytes(top["bytes"]): float(top["logprob"]) for top in entry["top_logprobs"]},
            )
            for one, entry in zip(ids, told, strict=False)
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Fault("bad_reply", f"the reply has no log-probabilities ({error!r})") from error


def likeness(one: Sequence[Token], other: Sequence[Token]) -> Likeness:
    """How two answers to one prompt compare; both end by a token, or after as many."""
    for mine, theirs in zip(one, other, strict=False):
        if mine.id != theirs.id:
            gap = max(
                mine.logprob - mine.likeliest.get(theirs.text, -math.inf),
                theirs.logprob - theirs.likeliest.get(mine.text, -math.inf),
            )
            return "near_tie" if gap <= NEAR_TIE else "different"
    return "same" if len(one) == len(other) else "different"


class Compared(NamedTuple):
    """Answers against the first candidate's: how many were alike, and how far log-probabilities of equal tokens moved.

    `moved` is the mean difference over all tokens up to the first that differs; None where there are none.
    """

    likeness: Counter[Likeness]
    moved: float | None

    @property
    def differing(self) -> float:
        """The share of answers that differ by more than a near-tie."""
        return self.likeness["different"] / max(1, self.likeness.total())

    def differs_more_than(self, own: "Compared") -> bool:
        """Whether beyond what the first candidate differs from itself: some models' own answers part anyhow."""
        return self.differing > OWN * own.differing


def compare(first: Mapping[str, list[Token]], others: Iterable[Mapping[str, list[Token]]]) -> Compared:
    """Answers by prompt id, those of `first` against each of the others'; what one has no answer to is left out."""
    found = Counter[Likeness]()
    moved = []
    for other in others:
        for prompt_id in first.keys() & other.keys():
            one, two = first[prompt_id], other[prompt_id]
            found[likeness(one, two)] += 1
            for mine, theirs in zip(one, two, strict=False):
                if mine.id != theirs.id:
                    break
                moved.append(abs(mine.logprob - theirs.logprob))
    return Compared(found, sum(moved) / len(moved) if moved else None)

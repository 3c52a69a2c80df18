"""One assistant turn becomes one training row: which turns are kept, how they are cut, and what is refused.

A row is the prompt's token ids as the server had them, then the response's as it gave them, never tokenized again. Its
mask is 1 exactly on the response: what the template opens an answer with (such as `<think>` and a line break) is the
prompt's, and is not supervised.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workflow_scripts.completions.replies import INT32
from workflow_scripts.config import Training
from workflow_scripts.errors import PlainError
from workflow_scripts.training.account import Account
from workflow_scripts.training.windows import Costs, cut, supervised


class Row(NamedTuple):
    """A training row. `prompt` of its ids are not supervised, all after them are; `kind` is the turn's class."""

    prompt_id: str
    sample: int
    turn: int
    source: str
    kind: str
    ids: NDArray[np.int32]
    prompt: int

    @property
    def mask(self) -> NDArray[np.uint8]:
        """1 on the response's tokens, 0 before."""
        mask = np.ones(len(self.ids), dtype=np.uint8)
        mask[: self.prompt] = 0
        return mask


class Rows:
    """Makes rows of answered prompts, by the config's `training`; counts what is dropped and what windows cost.

    `vocabulary`: token ids are below it; None where it is not known. `remedy` is what to do about a turn that is none,
    and may name the completion's fields in braces.
    """

    def __init__(self, training: Training, vocabulary: int | None, remedy: str) -> None:
        self._remedy = remedy
        self.account = Account()
        self.costs = Costs(training.min_supervised_tokens)
        self._training = training
        self._below = INT32 if vocabulary is None else vocabulary
        self._of_source = Counter[str]()

    def of(self, answered: Mapping[str, Any]) -> Iterator[Row]:
        """The rows of a completion, or of a recorded conversation in the same form. PlainError for one that is none."""
        training = self._training
        for number, turn in enumerate(answered["turns"]):
            prompt, response = turn["prompt_token_ids"], turn["response_token_ids"]
            self.account.take(len(response))
            source = answered["source"]
            if "unusable" in turn:
                self.account.drop(turn["unusable"], 0)
                continue
            if turn["class"] not in training.keep:
                self.account.drop(f"class {turn['class']}", len(response))
                continue
            ids = self._checked(answered, number)
            if len(response) < training.min_supervised_tokens:
                self.account.drop("below min_supervised_tokens", len(response))
                continue
            if self._of_source[source] == training.source_rows.get(source):
                self.account.drop("over source_rows", len(response))
                continue
            self.costs.add(len(prompt), len(response))
            start, end = cut(len(prompt), len(response), training.max_tokens, training.longer)
            kept = supervised(len(prompt), start, end)
            if kept < training.min_supervised_tokens:
                dropped = training.longer == "drop"
                reason = "longer than max_tokens" if dropped else "cut below min_supervised_tokens"
                self.account.drop(reason, len(response))
                continue
            self._of_source[source] += 1
            self.account.keep(kept, len(response) - kept)
            yield Row(
                answered["prompt_id"],
                answered["sample"],
                number,
                source,
                turn["class"],
                ids[start:end],
                len(prompt) - start,
            )

    def _checked(self, answered: Mapping[str, Any], number: int) -> NDArray[np.int32]:
        """The turn's ids, prompt and response. PlainError if trainers would learn from what is none, or crash on it."""
        turn = answered["turns"][number]
        prompt, response = turn["prompt_token_ids"], turn["response_token_ids"]
        where, remedy = f"prompt {answered['prompt_id']}, turn {number}", self._remedy.format_map(answered)
        try:
            ids = np.array(prompt + response)  # asked for integers, numpy would make some of 1.5 and of true
            if len(ids) and ids.dtype.kind not in "iu":
                raise TypeError(ids.dtype)
        except (TypeError, ValueError) as error:
            raise PlainError(f"{where}: its token ids are no integers. {remedy}") from error
        if not prompt or ids.min() < 0 or ids.max() >= self._below:
            odd = f"token id {ids[(ids < 0) | (ids >= self._below)][0]}" if prompt else "a prompt without tokens"
            raise PlainError(f"{where}: {odd}, and the vocabulary has ids from 0 to {self._below - 1}. {remedy}")
        usage = turn.get("usage")
        if usage and (len(prompt), len(response)) != (usage["prompt_tokens"], usage["completion_tokens"]):
            raise PlainError(
                f"{where}: it has {len(prompt)} and {len(response)} token ids, and its usage says "
                f"{usage['prompt_tokens']} and {usage['completion_tokens']}. {remedy}"
            )
        if not response and turn["class"] != "empty":
            raise PlainError(f"{where}: its class is {turn['class']}, and its mask would have no ones. {remedy}")
        return ids.astype(np.int32)

"""The datasets' own answers through the target's chat template: off-policy turns in the form of completions.

Each recorded assistant turn is rendered twice: the conversation before it with the opening of an answer, as a server
would be asked, and with the answer. What the second text adds to the first is the response. Where its tokens go on from
the prompt's, they are taken as they are; where one would reach across the boundary, the answer is tokenized by itself:
the prompt's ids are always those that a server would see. What the template writes after the turn's last special token
is nobody's answer, and is left out.

Under `prompts.turns: first` that is each conversation's first assistant turn, as it is generated; under `all`, each.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workflow_scripts.completions.classify import turn_class
from workflow_scripts.completions.sampling import settings
from workflow_scripts.identity import digest
from workflow_scripts.prompts import exclude, split
from workflow_scripts.prompts import tokenizer as tokenizers
from workflow_scripts.prompts.rendering import FORM, Refused, encode, render, shown, variables
from workflow_scripts.records import Message, Prompt
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Recorded:
    """The recorded answers of a run's manifest. PlainError if the target's tokenizer can't be had."""

    def __init__(self, run: Run) -> None:
        self._run = run
        config = run.config
        locked = exclude.recorded_inputs(run).get("tokenizer") or tokenizers.look_up(config)
        tokenizer, found = tokenizers.load(config, locked)
        template = tokenizers.template_text(config)
        sampling = config.sampling.model_dump(exclude_defaults=True)  # with the template's variables
        self.fingerprint = digest({"recorded": [FORM, [entry["sha256"] for entry in found], template, sampling]}, 64)
        self._renderings = Renderings(tokenizer)

    def conversations(self) -> Iterator[dict[str, Any]]:
        """Each conversation of the manifest, in its order, in the form of a completion.

        Of a turn that has no ids, `unusable` says why.
        """
        for prompt in split.recorded(self._run):
            yield {**prompt, "sample": 0, "turns": list(self._turns(prompt))}

    def _turns(self, prompt: Prompt) -> Iterator[dict[str, Any]]:
        places = [at for at, message in enumerate(prompt["messages"]) if message["role"] == "assistant"]
        if not places:
            yield _unusable("no recorded answer")
        sampling = settings(self._run.config.sampling, prompt, 0)
        for at in places if self._run.config.prompts.turns == "all" else places[:1]:
            yield self._renderings.turn(prompt["messages"][: at + 1], prompt["tools"], sampling)


class Renderings:
    """Turns by a tokenizer and its chat template."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)

    def turn(self, messages: list[Message], tools: Any, sampling: dict[str, Any]) -> dict[str, Any]:
        """The turn that is the last of `messages`."""
        tools, kwargs = shown(tools, sampling), variables(sampling)
        try:
            asked = render(self._tokenizer, messages[:-1], tools, kwargs)
            whole = render(self._tokenizer, messages, tools, kwargs, opening=False)
        except Refused:
            return _unusable("refused by the template")
        if not whole.startswith(asked):
            return _unusable("the template opens an answer otherwise than it writes one")
        prompt, both = encode(self._tokenizer, asked), encode(self._tokenizer, whole)
        goes_on = both[: len(prompt)] == prompt
        response = both[len(prompt) :] if goes_on else encode(self._tokenizer, whole.removeprefix(asked))
        response = self._ended(response)
        return {
            "class": turn_class(messages[-1], "stop", response),
            "prompt_token_ids": prompt,
            "response_token_ids": response,
        }

    def _ended(self, response: list[int]) -> list[int]:
        """The response up to its last special token, if only white space is after it."""
        last = next((at for at in reversed(range(len(response))) if response[at] in self._special), None)
        if last is None or str(self._tokenizer.decode(response[last + 1 :])).strip():
            return response
        return response[: last + 1]


def _unusable(why: str) -> dict[str, Any]:
    return {"unusable": why, "prompt_token_ids": [], "response_token_ids": []}

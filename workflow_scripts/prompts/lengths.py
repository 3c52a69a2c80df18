"""Prompts that the target could not answer whole: their tokens, counted before any server sees them.

Counted are the messages before the first assistant turn and the tools, rendered by the target's own chat template with
the opening of the answer, as the server is asked. What the template refuses (a system prompt, two user turns in a row)
has no count, and is kept: the server's refusal classes it. A template that refuses one plain question is broken.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from workflow_scripts import files
from workflow_scripts.config import Config
from workflow_scripts.config.generation import THINKING_KWARG
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.prompts import tokenizer as tokenizers
from workflow_scripts.prompts.filters import Hit, stretches
from workflow_scripts.prompts.inputs import Input
from workflow_scripts.prompts.rendering import FORM, Refused, render
from workflow_scripts.records import Message
from workflow_scripts.run import Run
from workflow_scripts.sources.prompt_ids import Tools, prompt_side

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# That are counted at once, over all cores; a character takes about 60 bytes meanwhile.
PROMPTS_AT_ONCE = 512
CHARACTERS_AT_ONCE = 4 << 20


class Counts:
    """Tokens by first_id, kept in a file that grows: records of 32 bytes of id and 4 of the count, little endian.

    Jobs append to it at once under a lock; what a death cut short is cut off by the next writer.
    """

    RECORD = 36
    REFUSED = 0xFFFFFFFF

    def __init__(self, path: Path) -> None:
        self._path = path
        data = path.read_bytes() if path.exists() else b""
        whole = range(0, len(data) - self.RECORD + 1, self.RECORD)
        self._known = {data[at : at + 32]: int.from_bytes(data[at + 32 : at + 36], "little") for at in whole}

    def __contains__(self, first_id: str) -> bool:
        return bytes.fromhex(first_id) in self._known

    def get(self, first_id: str) -> int | None:
        """The tokens of a prompt; None if they were not counted, or the template refused it."""
        found = self._known.get(bytes.fromhex(first_id), self.REFUSED)
        return None if found == self.REFUSED else found

    def add(self, counted: Iterable[tuple[str, int | None]]) -> None:
        """Remember, here and on disk; a cache that can't be written only costs time."""
        new = {bytes.fromhex(first_id): self.REFUSED if tokens is None else tokens for first_id, tokens in counted}
        self._known |= new
        try:
            with files.file_lock(self._path.with_suffix(".lock")), self._path.open("ab") as out:
                out.truncate(out.tell() - out.tell() % self.RECORD)
                out.write(b"".join(key + tokens.to_bytes(4, "little") for key, tokens in new.items()))
        except OSError:
            pass


class Counter:
    """Counts the tokens of prompts by a tokenizer and its chat template. `refusal` is what the template said last."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template_kwargs: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs
        self.refusal: str | None = None
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:  # a tokenizer.json may say to cut or to pad
            self._backend.no_truncation()
            self._backend.no_padding()

    def render(self, messages: list[Message], tools: Tools) -> str | None:
        """The text that the server makes of a prompt; None if its template refuses it."""
        try:
            return render(self._tokenizer, messages, tools, self._kwargs)
        except Refused as error:
            self.refusal = tokenizers.one_line(error)
            return None

    def check(self) -> None:
        """PlainError where the template refuses even one plain question."""
        if self.render([{"role": "user", "content": "Hello"}], None) is None:
            raise PlainError(
                f"the chat template can't write even one question as a prompt ({self.refusal}); mend it, or name "
                f"another: servers.args.chat-template"
            )

    def count(self, prompts: Iterable[tuple[list[Message], Tools]]) -> list[int | None]:
        """The tokens of each prompt."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        texts = [self.render(messages, tools) for messages, tools in prompts]
        lengths = self._lengths([text for text in texts if text is not None])
        return [None if text is None else next(lengths) for text in texts]

    def _lengths(self, texts: list[str]) -> Iterator[int]:
        # Special tokens are the template's to write.
        if not texts:
            return
        if self._backend is not None:
            found = self._backend.encode_batch_fast(texts, add_special_tokens=False)
            yield from (len(encoding.ids) for encoding in found)
        else:
            yield from map(len, self._tokenizer(texts, add_special_tokens=False)["input_ids"])


class Lengths:
    """Drops prompts over `max_prompt_tokens`, and those that leave no room for `max_tokens` in the context."""

    reason = "too_long"

    def __init__(self, counter: Counter, counts: Counts, config: Config) -> None:
        self._counter, self._counts = counter, counts
        self._most = config.prompts.max_prompt_tokens
        self._context = tokenizers.context_length(config)
        self._answer = config.sampling.tokens_of_turns()[0]  # the least that any prompt is given

    def check(self, candidates: pl.DataFrame) -> dict[int, Hit]:
        """The candidates that are too long."""
        self._count(candidates)
        hits = {}
        for at, tokens in enumerate(self.tokens(candidates)):
            if tokens is not None and (why := self._too_long(tokens)):
                hits[at] = Hit(None, f"{tokens:,} tokens; {why}")
        return hits

    def tokens(self, prompts: pl.DataFrame) -> list[int | None]:
        """The tokens of prompts that were checked, by their `first_id`; null where the template refused them."""
        return [self._counts.get(first_id) for first_id in prompts["first_id"]]

    @property
    def refusal(self) -> str | None:
        """What the template said of the last prompt that it refused in this job; None if it refused none."""
        return self._counter.refusal

    def _too_long(self, tokens: int) -> str | None:
        if self._most is not None and tokens > self._most:
            return f"prompts.max_prompt_tokens is {self._most:,}"
        if self._context is not None and tokens + self._answer > self._context:
            return f"with sampling.max_tokens ({self._answer:,}) they pass context-length ({self._context:,})"
        return None

    def _count(self, candidates: pl.DataFrame) -> None:
        columns = candidates.select("first_id", "messages", "tools").iter_rows()
        new = [row for row in columns if row[0] not in self._counts]
        lengths = [len(messages) + len(tools or "") for _, messages, tools in new]
        for stretch in stretches(lengths, PROMPTS_AT_ONCE, CHARACTERS_AT_ONCE):
            some = new[stretch.start : stretch.stop]
            counted = self._counter.count(
                (prompt_side(orjson.loads(messages)), None if tools is None else orjson.loads(tools))
                for _, messages, tools in some
            )
            self._counts.add(zip((first_id for first_id, _, _ in some), counted, strict=True))


def open_lengths(run: Run, recorded: Input) -> Lengths | None:
    """The filter of a run, by the tokenizer that lock.json recorded; None where it turns out not to work.

    A count is kept in DRAFTMILL_HOME/tokens, by all that decides it: the tokenizer's files, the template and what it is
    given, the library's version, the prompt. PlainError where prompts must be counted, and can't be.
    """
    config = run.config
    thinking = config.sampling.thinking
    kwargs = {**config.sampling.template}
    if isinstance(thinking, bool):  # where it varies, prompts are counted as if nothing was said
        kwargs[THINKING_KWARG] = thinking
    try:
        tokenizer, found = tokenizers.load(config, recorded)
        counter = Counter(tokenizer, kwargs)
        counter.check()
    except PlainError as error:
        if tokenizers.needed(config):
            raise
        say(f"prompts are not counted: {error}")
        return None
    content = [entry["sha256"] for entry in found]
    template = tokenizers.template_text(config)
    by = [FORM, version("transformers"), version("tokenizers")]
    key = hashlib.sha256(orjson.dumps([by, content, template, kwargs]))
    counts = Counts(files.cache_home() / "tokens" / f"{key.hexdigest()[:16]}.bin")
    return Lengths(counter, counts, config)

"""Whether response ids say what is stored of them: they are decoded, and thoughts, text and calls looked for in it.

A server's parsers cut a response up, drop what parts it (tags, line breaks, the end token), and write calls in a form
of their own; so text and calls must be found after the thoughts, and of calls only names and plain words of arguments.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import orjson

from workflow_scripts.jobs import say
from workflow_scripts.records import Message

Decode = Callable[[list[int]], str]


def says(decoded: str, message: Message) -> bool:
    """Whether a decoded response holds the message's parts."""
    thoughts = message.get("reasoning_content", "").strip()
    after = decoded.partition(thoughts)[2] if thoughts else decoded
    parts = [message["content"].strip()]
    for call in message.get("tool_calls", ()):
        parts += [call["function"]["name"], *_words(call["function"]["arguments"])]
    return thoughts in decoded and all(part in after for part in parts)


def _words(arguments: str) -> list[str]:
    """The texts of arguments that any way of writing them holds as they are: plain words."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return []
    words = value.values() if isinstance(value, dict) else ()
    return [word for word in words if isinstance(word, str) and word.isalnum() and word.isascii()]


@lru_cache(1)
def decoder(tokenizer_json: Path) -> Decode | None:
    """What decodes by a model's tokenizer.json, special tokens included: a millisecond for 4,000 ids.

    None, and a line, if the file can't be read: servers may have other means.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the library raises nothing narrower
        say(f"responses are not decoded: {tokenizer_json} can't be read ({error})")
        return None
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))

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
    """What decodes by a model's tokenizer.json, special tokens included: a tenth of a millisecond for 3,000 ids.

    None, and a line, if the file can't be read: servers may have other means.
    """
    from tokenizers import Tokenizer, decoders

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the library raises nothing narrower
        say(f"responses are not decoded: {tokenizer_json} can't be read ({error})")
        return None
    if isinstance(tokenizer.decoder, decoders.ByteLevel):  # what a token says does not depend on its neighbours
        pieces = _Pieces(tokenizer.id_to_token)
        return lambda ids: b"".join(map(pieces.__getitem__, ids)).decode(errors="replace")
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


class _Pieces(dict[int, bytes]):
    """The bytes of tokens by their ids, as `tokenizers`' ByteLevel decoder has them, which takes four times as long."""

    def __init__(self, name_of: Callable[[int], str | None]) -> None:
        self._name_of = name_of

    def __missing__(self, token: int) -> bytes:
        name = self._name_of(token) or ""
        try:
            piece = bytes(BYTES[character] for character in name)
        except KeyError:  # an added token that is text as it stands
            piece = name.encode()
        self[token] = piece
        return piece


def _bytes_of_names() -> dict[str, int]:
    """The characters that stand for bytes in the names of tokens, as in GPT-2: printable ones for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


BYTES = _bytes_of_names()

"""Text of models and datasets, made safe to look at: it can't steer a terminal, turn a line around or bury a page.

What can't be seen, or does something to its reader (ANSI sequences, bidirectional overrides, zero-width characters),
is written as <U+001B>. Joiners stay: scripts and emoji need them.
"""

import re
import unicodedata

KEPT = "\n\t\u200c\u200d"
_SUSPECTS = re.compile(r"[^\x20-\x7e\n\t]")  # the others need no look
_DOING = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # Unicode's general categories


def visible(text: str) -> str:
    """The text with all that is not to be seen spelled out; line ends are newlines."""
    return _SUSPECTS.sub(_spell, text.replace("\r\n", "\n"))


def one_line(text: str, width: int) -> str:
    """The text on one line of at most `width` columns."""
    return clip(" ".join(visible(text).split()), width)


def clip(line: str, width: int) -> str:
    """A line cut to `width` columns of a terminal."""
    if columns(line) <= width:
        return line
    kept, used = [], 0
    for character in line:
        used += columns(character)
        if used > width - 3:
            break
        kept.append(character)
    return "".join(kept) + "..."


def columns(line: str) -> int:
    """How many columns of a terminal a line takes: East Asian wide characters take two, combining ones none."""
    if line.isascii():
        return len(line)
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in line
    )


def cut(text: str, most: int) -> str:
    """At most about `most` characters: the beginning, and a third of that of the end, where a text goes wrong."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} characters are left out here ...]\n{text[len(text) - tail :]}"


def _spell(match: re.Match[str]) -> str:
    character = match[0]
    if character in KEPT or unicodedata.category(character) not in _DOING:
        return character
    return f"<U+{ord(character):04X}>"

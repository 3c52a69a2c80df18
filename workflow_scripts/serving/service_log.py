"""A service's log: one file, a header line for each start, and the lines of it that tell why a start failed."""

import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROTATE_BYTES = 64 << 20
TAIL_BYTES = 256 << 10
MOST_LINES = 15
MOST_CHARACTERS = 300

HEADER = b"=== draftmill: start "
ANSI_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
SECRET = re.compile(
    r"(?i)((?:api_?key|secret|password|auth_token|hf_token)\w*['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,)]+)"
)
# The line that ends a Python traceback: a dotted name that ends like an exception's, then a colon or nothing.
EXCEPTION = re.compile(r"^(\w+\.)*\w*(Error|Exception|Exit|Interrupt)(:|$)")
# Lines of a traceback's frames are indented and repeat words of the source: only lines that start at the margin.
COMPLAINT = re.compile(
    r"(?i)^\S.*\b(error|fatal|panic|exception|cannot|can't|could not|not found|no such|out of memory|killed|refused"
    r"|denied|already in use|invalid|unrecognized|failed)\b"
)
# What Python prints between the tracebacks of a chain.
CHAIN = re.compile(r"^(During handling of the above exception|The above exception was the direct cause)")


@contextmanager
def open_for_start(path: Path, number: int, argv: list[str]) -> Iterator[int]:
    """A descriptor that appends to the log, after a header line for start `number`; a long log is moved to PATH.1."""
    if path.exists() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(fd, HEADER + f"{number}, {when}: {shlex.join(argv)}\n".encode())
        yield fd
    finally:
        os.close(fd)


def telling_lines(path: Path) -> list[str]:
    """The lines since the log's last start that say what went wrong, made fit for a terminal, the last 15 at most.

    Exceptions and complaints; where there are none, the end of the log. Long lines are cut.
    """
    lines = [line for line in tail(path) if not CHAIN.match(line)]
    telling = [line for line in lines if EXCEPTION.match(line) or COMPLAINT.match(line)]
    # Servers repeat one complaint from each of their processes: once is enough, where it was said last.
    unique = list(dict.fromkeys(reversed(telling or lines)))[:MOST_LINES]
    return [line[:MOST_CHARACTERS] for line in reversed(unique)]


def tail(path: Path) -> list[str]:
    """The log's last lines, of its last start; control characters are dropped, secrets masked. No log is no lines."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            end = file.read()
    except FileNotFoundError:
        return []
    if (start := end.rfind(HEADER)) >= 0:
        end = end[start:].partition(b"\n")[2]
    lines = [_visible(line) for line in re.split(r"[\r\n]+", end.decode(errors="replace"))]
    return [line for line in lines if line.strip()]


def _visible(line: str) -> str:
    text = ANSI_SEQUENCE.sub("", line).replace("\t", "    ")
    text = "".join(character for character in text if character.isprintable()).rstrip()
    return SECRET.sub(r"\1***", text)

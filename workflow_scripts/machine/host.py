"""The one seam to the machine: what tools print, what files hold. Recorded machines stand in for it in tests."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TOOL_SECONDS = 60.0  # nvidia-smi takes long while a driver starts
MAX_TEXT = 4 << 20


class Answer(NamedTuple):
    """What a tool printed, errors among it, and whether it succeeded."""

    ok: bool
    text: str


# Tools that hung once: nobody waits for them again.
_HUNG: dict[str, Answer] = {}


@dataclass(frozen=True)
class Host:
    """A machine as it can be asked.

    `ask` runs a tool; None if it is not there. `read` gives a file's text, or None; `exists` tells whether a
    path is there, links followed.
    """

    ask: Callable[[Sequence[str]], Answer | None]
    read: Callable[[str], str | None]
    exists: Callable[[str], bool]
    environ: Mapping[str, str]

    def run(self, argv: Sequence[str]) -> str | None:
        """What a tool prints; None if it is not there, hangs or fails."""
        answer = self.ask(argv)
        return answer.text if answer is not None and answer.ok else None


def here() -> Host:
    """This machine."""
    return Host(ask=_ask, read=_read, exists=lambda path: Path(path).exists(), environ=os.environ)


def _ask(argv: Sequence[str]) -> Answer | None:
    if argv[0] in _HUNG:
        return _HUNG[argv[0]]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError:
        return None
    try:
        text, _ = process.communicate(timeout=TOOL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # and not waited for: what waits for a driver that hangs can't be ended
        return _HUNG.setdefault(argv[0], Answer(False, f"{argv[0]} does not answer within {TOOL_SECONDS:.0f} s"))
    return Answer(process.returncode == 0, text)


def _read(path: str) -> str | None:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT)
    except OSError:
        return None

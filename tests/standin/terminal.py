"""A real terminal: tmux, with a server of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Terminal:
    """A shell's window."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._env = {"PATH": path, "PYTHONPATH": str(ROOT), "PS1": "$ ", "HOME": str(folder), "LC_ALL": "C.UTF-8"}

    def _tmux(self, *args: str) -> str:
        argv = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *args]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60, env=self._env).stdout

    def type(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._tmux("send-keys", *keys)

    def say(self, line: str) -> None:
        """Type a line, and Enter."""
        self._tmux("send-keys", "-l", line)
        self.type("Enter")

    @property
    def screen(self) -> str:
        """What can be seen."""
        return self._tmux("capture-pane", "-p")

    @property
    def colours(self) -> str:
        """The same, with its colours as ANSI sequences."""
        return self._tmux("capture-pane", "-p", "-e")

    @property
    def is_plain(self) -> bool:
        """Whether it shows the usual screen, with its cursor."""
        return self._tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").split() == ["0", "1"]


@contextmanager
def terminal(folder: Path, width: int = 80, height: int = 40) -> Iterator[Terminal]:
    """A window with a shell in `folder`, in which `python` is this one, until the end of the block."""
    found = Terminal(folder)
    found._tmux("new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(folder), "sh")
    try:
        yield found
    finally:
        found._tmux("kill-server")

"""Stand-ins that run already, as `servers.urls` names them."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.standin.waiting import until

ROOT = Path(__file__).parents[2]


class Server:
    """The process and its address. `stop` and `start` may be repeated: the address stays."""

    def __init__(self, log: Path, key_file: Path | None = None, seats: int = 4) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._argv = [sys.executable, "-m", "tests.standin.server", "--port", str(self.port)]
        self._argv += ["--max-running-requests", str(seats)]
        self._env = {"PATH": "/usr/bin:/bin", "STANDIN_LOG": str(log)}
        if key_file is not None:
            self._env["DRAFTMILL_SERVER_KEY_FILE"] = str(key_file)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **faults: Any) -> None:
        """Start it, and return when it answers."""
        env = self._env | {"STANDIN_FAULTS": json.dumps(faults)}
        self._process = subprocess.Popen(self._argv, cwd=ROOT, env=env, start_new_session=True)
        until(self._answers)

    def _answers(self) -> bool:
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return bool(opener.open(f"{self.url}/health", timeout=10).status == 200)
        except urllib.error.URLError:
            return False

    def stop(self) -> None:
        """Kill it, its scheduler too."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def running_server(log: Path, key_file: Path | None = None, seats: int = 4) -> Iterator[Server]:
    """A server that is not started yet, and does not outlive the block."""
    server = Server(log, key_file, seats)
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Fleet:
    """A running fleet."""

    urls: list[str]

    def report(self, until: float | None = None) -> dict[str, Any]:
        query = "" if until is None else f"?until={until}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.urls[0]}/report{query}", timeout=60) as reply:
            found: dict[str, Any] = json.load(reply)
            return found

    def first(self) -> float | None:
        """When the first request came to any server."""
        return min((one["first"] for one in self.report()["servers"] if one["first"] is not None), default=None)


@contextmanager
def running_fleet(**options: object) -> Iterator[Fleet]:
    """A fleet with these options of its command line, until the end of the block."""
    flags = [
        word for name, value in options.items() for word in (f"--{name}", *([] if value is True else [str(value)]))
    ]
    argv = [sys.executable, "-m", "tests.standin.fleet", *flags]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Fleet(json.loads(process.stdout.readline()))
        finally:
            process.terminate()

"""A real SGLang of a test's own: started through our launcher, asked by plain HTTP."""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts import processes
from workflow_scripts.serving import launch
from workflow_scripts.serving.environment import Environment


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str
    key: str
    log: Path

    def get(self, path: str, key: str | None, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Status and JSON of a GET, or of a POST of `body`."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode() if body else None)
        request.add_header("Content-Type", "application/json")
        if key is not None:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as reply:
                text = reply.read()
                return reply.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None

    def chat(self, text: str, **options: Any) -> dict[str, Any]:
        """The first choice of a greedy answer."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 64}
        status, reply = self.get("/v1/chat/completions", self.key, {**body, "return_token_ids": True, **options})
        assert status == 200
        choice: dict[str, Any] = reply["choices"][0]
        return choice


@contextmanager
def sglang(env: Environment, model: Path, args: dict[str, Any], scratch: Path) -> Iterator[Server]:
    """A server that answers; it, and all that it started, is ended at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key, key_file, log = secrets.token_urlsafe(32), scratch / "key", scratch / "server.log"
    with os.fdopen(os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(key)
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command(env.python, launch.flags("sglang-cpu", args, model, "m", port)),
            env=launch.environ("sglang-cpu", key_file, []),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = Server(process, f"http://127.0.0.1:{port}", key, log)
        _wait(server)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            left = processes.end_all(lambda: processes.session_members(process.pid), 5)
            process.wait()
    assert left == []


def _wait(server: Server) -> None:
    deadline = time.monotonic() + 300
    while True:
        assert server.process.poll() is None, server.log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, server.log.read_text(errors="replace")[-3000:]
        try:
            if server.get("/health", None)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)

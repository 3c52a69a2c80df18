"""The real SGLang on the CPU, through our launcher.

To start a server for a test:

1. `env = environment.ensure("sglang-cpu")`: built once per machine (two minutes, 2.5 GB), a look-up afterwards;
2. a model's folder: `model.ensure("embedded:SmolLM2-135M-Instruct", None, env.python)` (real, 135M, no thinking, 12 s
   once), or the output of tiny_qwen3.py (1.4M, thinks, calls a tool, answers known; 30 s);
3. a 0600 file with a key, and a free port;
4. `launch.command(env.python, launch.flags("sglang-cpu", args, folder, name, port))` with
   `launch.environ("sglang-cpu", key_file, [])`, its output in a file;
5. wait for 200 from /health (20 to 40 s); SIGTERM ends it, its children with it, in 4 to 8 s.

`start_server` below does 3 to 5. One server takes 1.6 GB (tiny) to 2.5 GB (SmolLM2) of memory.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import processes
from workflow_scripts.serving import flags, gpu_flags, known_flags, launch, model
from workflow_scripts.serving.environment import Environment

DATA = Path(__file__).parents[1] / "data"


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


@pytest.fixture
def start_server(env: Environment, tmp_path: Path) -> Iterator[Callable[[Path, dict[str, Any]], Server]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, args: dict[str, Any]) -> Server:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        key, key_file, log = secrets.token_urlsafe(32), tmp_path / "key", tmp_path / "server.log"
        with os.fdopen(os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(key)
        with log.open("wb") as output:
            process = subprocess.Popen(
                launch.command(env.python, launch.flags("sglang-cpu", args, folder, "m", port)),
                env=launch.environ("sglang-cpu", key_file, []),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        server = Server(process, f"http://127.0.0.1:{port}", key, log)
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            try:
                if server.get("/health", None)[0] == 200:
                    return server
            except OSError:
                pass
            time.sleep(0.5)

    yield start
    for process in started:
        session = process.pid
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            left = processes.end_all(lambda session=session: processes.session_members(session), 5)  # type: ignore[misc]
            process.wait()
        assert left == []


def argv_of_all() -> str:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_text(errors="replace"))
            except OSError:
                pass
    return "\n".join(found)


def test_the_embedded_model_answers_behind_a_key(
    env: Environment, start_server: Callable[[Path, dict[str, Any]], Server]
) -> None:
    folder = model.ensure("embedded:SmolLM2-135M-Instruct", None, env.python)
    server = start_server(folder, {"max-running-requests": 8, "context-length": 2048})

    assert server.get("/v1/models", None)[0] == 401
    assert server.get("/server_info", "sk-wrong")[0] == 401
    assert server.key not in argv_of_all()
    log = server.log.read_text(errors="replace")
    assert server.key not in log
    assert "'api_key': '[key]'" in log

    granted = launch.granted(server.url, server.key)
    assert (granted.seats, granted.token_capacity, granted.context_length) == (8, 32768, 2048)
    assert 0 < granted.max_input_tokens < 2048
    assert (granted.version, granted.model_path, granted.served_name) == ("0.5.23", str(folder), "m")
    assert granted.content["context_length"] == 2048
    assert granted.speed["attention_backend"] == "torch_native"
    assert server.key not in repr(granted)

    choice = server.chat("What is the capital of France?")
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert choice["finish_reason"] == "stop"
    eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert choice["response_token_ids"][-1] == eos
    assert choice["prompt_token_ids"][0] == json.loads((folder / "config.json").read_text())["bos_token_id"]


def test_the_tiny_qwen3_thinks(tiny_qwen3: Path, start_server: Callable[[Path, dict[str, Any]], Server]) -> None:
    server = start_server(tiny_qwen3, {"reasoning-parser": "qwen3"})
    thought = server.chat("what is 12 times 7")
    assert thought["message"]["reasoning_content"].strip() == "The request looks like math."
    assert thought["message"]["content"].strip() == "math"
    direct = server.chat("tell me a joke", chat_template_kwargs={"enable_thinking": False})
    assert not direct["message"]["reasoning_content"]
    assert direct["message"]["content"].strip() == "chat"


def test_every_flag_that_we_name_is_one_of_sglangs(env: Environment) -> None:
    known = known_flags.listing(env, "sglang-cpu")
    ours = flags.SPEED_FLAGS | launch.MANAGED.keys() | launch.PARALLEL | launch.DEFAULTS["sglang-cpu"].keys()
    settings = {name.replace("_", "-") for name in (*launch.CONTENT_SETTINGS, *launch.SPEED_SETTINGS)}
    renamed = {*known_flags.RENAMED.values(), *(name for name, _ in known_flags.RENAMED_VALUES)}
    assert (ours | settings | renamed) - known.flags.keys() == set()
    assert not known_flags.RENAMED.keys() & known.flags.keys()


def test_the_table_for_gpus_names_flags_and_values_of_sglangs(env: Environment) -> None:
    known = known_flags.listing(env, "sglang-cpu")
    for line in gpu_flags.table():
        for value in [line.value, *line.refused]:
            assert known_flags.mistakes({line.flag: value}, known, []) == []


def test_the_recorded_list_of_flags_is_sglangs(env: Environment) -> None:
    recorded = known_flags.Known.from_json(json.loads((DATA / "sglang_flags.json").read_text()))
    assert known_flags.listing(env, "sglang-cpu") == recorded

"""From the config to a server's command line, environment and GPUs, and what it grants."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import files
from workflow_scripts.completions.marks import TAGS
from workflow_scripts.errors import PlainError
from workflow_scripts.serving import launch


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    return folder


def flag_words(*args: Any, **kwargs: Any) -> list[str]:
    return launch.words(launch.flags(*args, **kwargs))


def after(words: list[str], flag: str) -> str:
    assert words.count(flag) == 1
    return words[words.index(flag) + 1]


def test_the_engines_defaults_and_what_is_ours(model: Path) -> None:
    words = flag_words("sglang-cpu", {}, model, "served", 4321)
    assert after(words, "--host") == "127.0.0.1"
    assert after(words, "--port") == "4321"
    assert after(words, "--model-path") == str(model)
    assert after(words, "--served-model-name") == "served"
    assert after(words, "--device") == "cpu"
    assert after(words, "--max-running-requests") == "16"
    assert {"--enable-metrics", "--sleep-on-idle"} <= set(words)
    assert "--dtype" not in words
    assert "--device" not in flag_words("sglang", {}, model, "served", 4321)


def test_the_users_args_win(model: Path) -> None:
    args = {
        "max-running-requests": 64,
        "sleep-on-idle": False,
        "max-total-tokens": None,
        "mem-fraction-static": 0.85,
        "disable-radix-cache": True,
        "lora-paths": ["a=/x", "b=/y"],
        "cuda-graph-bs-decode": [],
        "reasoning-parser": "qwen3",
        "max-lora-rank": -1,
    }
    words = flag_words("sglang-cpu", args, model, "served", 4321)
    assert after(words, "--max-running-requests") == "64"
    assert not {"--sleep-on-idle", "--max-total-tokens", "--cuda-graph-bs-decode"} & set(words)
    assert after(words, "--mem-fraction-static") == "0.85"
    assert "--disable-radix-cache" in words
    assert words[words.index("--lora-paths") + 1 :][:2] == ["a=/x", "b=/y"]
    assert "--max-lora-rank=-1" in words  # a value that looks like a flag


def test_the_hardwares_flags_lie_between_the_engines_and_the_users(model: Path) -> None:
    hardware = {"attention-backend": "flashinfer", "disable-radix-cache": True}
    words = flag_words("sglang", {"disable-radix-cache": False}, model, "m", 1, hardware=hardware)
    assert after(words, "--attention-backend") == "flashinfer"
    assert "--disable-radix-cache" not in words


def test_float32_stays_float32_on_the_cpu(model: Path) -> None:
    (model / "config.json").write_text('{"dtype": "float32"}')
    assert after(flag_words("sglang-cpu", {}, model, "m", 1), "--dtype") == "float32"
    assert after(flag_words("sglang-cpu", {"dtype": "bfloat16"}, model, "m", 1), "--dtype") == "bfloat16"
    assert "--dtype" not in flag_words("sglang", {}, model, "m", 1)


def test_a_server_of_several_gpus_is_tensor_parallel_unless_told(model: Path) -> None:
    assert after(flag_words("sglang", {}, model, "m", 1, 4), "--tp-size") == "4"
    assert "--tp-size" not in flag_words("sglang", {"dp-size": 4}, model, "m", 1, 4)
    assert "--tp-size" not in flag_words("sglang", {}, model, "m", 1, 1)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("host", "127.0.0.1 only"),
        ("port", "free port"),
        ("model-path", "set model.path"),
        ("api-key", "key of its own"),
    ],
)
def test_flags_that_are_ours_are_refused(model: Path, name: str, instead: str) -> None:
    with pytest.raises(PlainError, match=f"servers.args.{name}: .*{instead}"):
        launch.flags("sglang", {name: "x"}, model, "m", 1)


def test_the_command_runs_the_launcher_and_holds_no_secret(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = launch.command(Path("/env/bin/python"), {"port": 1})
    assert command[:2] == ["/env/bin/python", "-P"]
    assert Path(command[2]).is_file()
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DRAFTMILL_SERVER_KEY", "db_password", "PYTHONPATH"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("SGLANG_CACHE", "kept")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")  # cards have other numbers then
    environ = launch.environ("sglang-cpu", tmp_path / "key", ["2", "3"])
    assert "hidden" not in environ.values()
    assert environ["SGLANG_CACHE"] == "kept"
    assert environ["DRAFTMILL_SERVER_KEY_FILE"] == str(tmp_path / "key")
    assert environ["DRAFTMILL_ENGINE"] == "sglang-cpu"
    assert environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    more = launch.environ("sglang", tmp_path / "key", [], {"CUDA_HOME": "/env/cu13"})
    assert more["CUDA_HOME"] == "/env/cu13"


def test_a_command_is_shown_so_that_it_can_be_typed() -> None:
    argv = ["/env/bin/python", "-P", "x.py", "--chat-template", "a b.jinja"]
    assert (
        launch.shown(argv, ["2", "3"]) == "CUDA_VISIBLE_DEVICES=2,3 /env/bin/python -P x.py --chat-template 'a b.jinja'"
    )
    assert launch.shown(argv[:1], []) == "/env/bin/python"


KEY = "sk-secret"
INFO: dict[str, Any] = {
    "api_key": KEY,
    "model_path": "/models/m",
    "dtype": "auto",
    "kv_cache_dtype": "fp8_e5m2",
    "context_length": None,
    "dp_size": 2,
    "attention_backend": "triton",
    "max_req_input_len": 8186,
    "version": "0.5.23",
    "internal_states": [
        {"api_key": KEY, "effective_max_running_requests_per_dp": 16, "memory_usage": {"token_capacity": 32768}}
    ]
    * 2,
}
MODELS = {"data": [{"id": "served", "max_model_len": 8192}]}

Answers = dict[str, tuple[int, bytes]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """Serve fixed answers to whoever shows the key; the server's URL."""
    servers = []

    def start(answers: Answers) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, b"{}"))
                if self.headers.get("Authorization") != f"Bearer {KEY}":
                    status, body = 401, b'{"error": "Unauthorized"}'
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def good() -> Answers:
    return {"/server_info": (200, json.dumps(INFO).encode()), "/v1/models": (200, json.dumps(MODELS).encode())}


def test_granted_reads_what_was_granted_and_never_the_key(
    serve: Callable[[Answers], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # a proxy is not for this machine's own servers
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    granted = launch.granted(serve(good()), KEY)
    assert (granted.seats, granted.token_capacity) == (32, 65536)
    assert (granted.max_input_tokens, granted.context_length) == (8186, 8192)
    assert (granted.version, granted.model_path, granted.served_name) == ("0.5.23", "/models/m", "served")
    assert granted.content["kv_cache_dtype"] == "fp8_e5m2"
    assert granted.speed["attention_backend"] == "triton"
    assert KEY not in repr(granted)
    line = launch.granted_line(granted, {"context-length": 9000, "max-running-requests": None})
    assert line == (
        "32 seats (asked: as many as fit), 65,536 tokens of cache, a context of 8,192 (asked: 9000), "
        "attention-backend triton"
    )


def test_a_refused_key_is_told_without_it(serve: Callable[[Answers], str]) -> None:
    with pytest.raises(PlainError, match="refuses the key") as caught:
        launch.granted(serve(good()), "sk-wrong")
    assert "sk-wrong" not in str(caught.value)


def test_a_redirect_is_not_followed(serve: Callable[[Answers], str]) -> None:
    elsewhere = serve(good())
    url = serve({"/server_info": (302, f"{elsewhere}/server_info".encode())})
    with pytest.raises(PlainError, match="HTTP 302"):
        launch.granted(url, KEY)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, "HTTP 404"),
        ({"/server_info": (200, b"<html>")}, "no proper answer"),
        ({**good(), "/server_info": (200, b"{}")}, "doesn't say what it grants"),
        ({**good(), "/v1/models": (200, b'{"data": []}')}, "doesn't say what it grants"),
    ],
)
def test_what_is_no_sglang_is_told(serve: Callable[[Answers], str], answers: Answers, message: str) -> None:
    with pytest.raises(PlainError, match=message):
        launch.granted(serve(answers), KEY)


def test_no_server_is_told() -> None:
    with pytest.raises(PlainError, match="no answer"):
        launch.granted("http://127.0.0.1:9", KEY)


def test_the_tokens_that_part_thoughts_from_the_rest(tmp_path: Path) -> None:
    assert launch.tokenizer_json(tmp_path) is None and launch.tags(None, TAGS) == {}
    added = [{"id": 7, "content": "<think>"}, {"id": 8, "content": "</think>"}, {"id": 9, "content": "<|im_end|>"}]
    files.write_json(tmp_path / "tokenizer.json", {"added_tokens": added, "model": {}})
    path = launch.tokenizer_json(tmp_path)
    assert path == tmp_path / "tokenizer.json" and launch.tags(path, TAGS) == {"<think>": 7, "</think>": 8}

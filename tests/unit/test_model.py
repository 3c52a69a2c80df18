"""The model's folder: the user's own, the embedded one, the hub's (one that listens here), and its identity."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.errors import PlainError
from workflow_scripts.serving import model

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").write_bytes(b"weights")
    return made


def test_a_local_folder_is_taken_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.ensure(str(folder), None, None) == folder
    monkeypatch.chdir(folder.parent)
    assert model.ensure("model", None, None) == folder


def test_a_folder_that_is_no_model_is_told(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(PlainError, match=r"has no \.safetensors weights"):
        model.ensure(str(folder), None, None)
    (folder / "config.json").unlink()
    with pytest.raises(PlainError, match=r"has no config\.json"):
        model.ensure(str(folder), None, None)


def test_missing_parts_of_the_weights_are_told(folder: Path) -> None:
    weights = {"a": "model.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(PlainError, match=r"lacks 1 of its weight files, model-2\.safetensors"):
        model.ensure(str(folder), None, None)


def test_what_is_neither_folder_nor_hub_id_is_told() -> None:
    with pytest.raises(PlainError, match="no folder here, and no hub id"):
        model.ensure("/nowhere/model", None, None)
    with pytest.raises(PlainError, match="no embedded model Llama; there is embedded:SmolLM2-135M-Instruct"):
        model.ensure("embedded:Llama", None, None)


def test_the_embedded_model_needs_a_server_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path))
    with pytest.raises(PlainError, match="not converted yet"):
        model.ensure("embedded:SmolLM2-135M-Instruct", None, None)


def test_wanted_files_are_safetensors_and_what_stands_beside_them() -> None:
    names = [
        "config.json", "tokenizer.json", "merges.txt", "model-1.safetensors", "model-2.safetensors", "README.md",
        "model.safetensors.index.json", "pytorch_model.bin", "original/model.safetensors", "consolidated.safetensors",
        "consolidated.00.pth", "chat_template.jinja", "additional_chat_templates/tools.jinja", "onnx/model.onnx",
    ]  # fmt: skip
    assert model.wanted_files(names) == [
        "additional_chat_templates/tools.jinja", "chat_template.jinja", "config.json", "merges.txt",
        "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json", "tokenizer.json",
    ]  # fmt: skip
    assert model.wanted_files(["consolidated.safetensors", "params.json"]) == [
        "consolidated.safetensors",
        "params.json",
    ]


COMMIT = "a" * 40
HUB_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 1000,
    "pytorch_model.bin": b"p" * 1000,
    "original/model.safetensors": b"o" * 1000,
}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as a model's download takes: /api/models info and tree, and /resolve."""

    protocol_version = "HTTP/1.1"

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        self.server.asked.append(path)  # type: ignore[attr-defined]
        entries: list[dict[str, Any]] = [
            {"type": "file", "path": name, "oid": hashlib.sha1(body).hexdigest(), "size": len(body)}
            for name, body in HUB_FILES.items()
        ]
        if path.startswith("/api/models/org/") and path.split("/")[4] not in ("model", "gated"):
            self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif "/nowhere" in path:
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif "/broken" in path:
            self.reply(500, b"{}")
        elif "/tree/" in path:
            self.reply(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/api/models/"):
            siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in entries]
            info = {"_id": "0", "id": "org/model", "sha": COMMIT, "siblings": siblings}
            self.reply(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/org/gated/"):
            self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            name = path.partition(f"/resolve/{COMMIT}/")[2]
            body = HUB_FILES[name]
            self.reply(200, body, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'})

    do_HEAD = do_GET

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


ENSURE = """
import sys
from workflow_scripts.errors import PlainError
from workflow_scripts.serving import model
try:
    print(model.ensure(sys.argv[1], sys.argv[2] or None, None))
except PlainError as error:
    sys.exit(f"error: {error}")
"""


def ensure(hub: ThreadingHTTPServer, home: Path, name: str, revision: str = "", **environ: str) -> tuple[str, str]:
    """What a process says that ensures a model of this hub (its client reads its settings at import), and its error."""
    result = subprocess.run(
        [sys.executable, "-c", ENSURE, name, revision],
        cwd=ROOT,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))},
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "HF_HOME": str(home),
            "NO_PROXY": "127.0.0.1",
            **environ,
        },
        capture_output=True,
        text=True,
    )
    return result.stdout, result.stderr


def test_a_hub_model_is_downloaded_without_what_no_server_reads(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    said, error = ensure(hub, tmp_path, "org/model", "main")
    assert error == ""
    announced, folder = said.splitlines()
    assert announced.startswith(f"downloading org/model at {COMMIT}: 3 files, 0.00 GB, to {tmp_path}")
    assert Path(folder).name == COMMIT
    assert sorted(path.name for path in Path(folder).iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (Path(folder) / "model.safetensors").read_bytes() == HUB_FILES["model.safetensors"]


def test_a_pinned_model_that_is_cached_takes_no_call(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    first, _ = ensure(hub, tmp_path, "org/model", COMMIT)
    hub.asked.clear()  # type: ignore[attr-defined]
    again, error = ensure(hub, tmp_path, "org/model", COMMIT)
    assert (again, error) == (first.splitlines()[-1] + "\n", "")
    assert hub.asked == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("revision", ["", "main", COMMIT])
def test_what_was_downloaded_is_found_offline(hub: ThreadingHTTPServer, tmp_path: Path, revision: str) -> None:
    first, _ = ensure(hub, tmp_path, "org/model", revision)
    hub.asked.clear()  # type: ignore[attr-defined]
    again, error = ensure(hub, tmp_path, "org/model", revision, HF_HUB_OFFLINE="1")
    assert (again, error) == (first.splitlines()[-1] + "\n", "")
    assert hub.asked == []  # type: ignore[attr-defined]


def test_a_download_that_was_cut_is_not_taken_for_whole(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    folder = Path(ensure(hub, tmp_path, "org/model", COMMIT)[0].splitlines()[-1])
    (folder / "tokenizer.json").unlink()
    said, error = ensure(hub, tmp_path, "org/model", COMMIT)
    assert error == ""
    assert "downloading org/model" in said
    assert (folder / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("name", "revision", "environ", "message"),
    [
        ("org/gated", "", {}, "org/gated is gated: accept its terms"),
        ("org/missing", "", {}, "the hub has no model org/missing, or it is private"),
        ("org/model", "nowhere", {}, "org/model has no revision nowhere"),
        ("org/model", "broken", {}, "org/model at revision broken could not be downloaded"),
        ("org/model", "", {"HF_HUB_OFFLINE": "1"}, "org/model is not in the hub's cache, and HF_HUB_OFFLINE forbids"),
        ("org/model", "", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "org/model could not be downloaded (ConnectError"),
    ],
)
def test_hub_trouble_is_told_plainly(
    hub: ThreadingHTTPServer, tmp_path: Path, name: str, revision: str, environ: dict[str, str], message: str
) -> None:
    said, error = ensure(hub, tmp_path, name, revision, **environ)
    assert error.startswith(f"error: model.{'revision' if revision == 'nowhere' else 'path'}: {message}"), said
    assert "Traceback" not in error

"""The real parts that integration tests share."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from tests.integration.real_store import make_run, raw_client
from tests.standin.hub import Hub, running_hub
from workflow_scripts import processes
from workflow_scripts.processes import ProcessId
from workflow_scripts.publishing import embedded
from workflow_scripts.publishing.store import Store, open_store
from workflow_scripts.run import Run
from workflow_scripts.serving import environment, supervisor
from workflow_scripts.serving.environment import Environment
from workflow_scripts.sources import hub, transfer

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

TINY_QWEN3 = Path(__file__).with_name("tiny_qwen3.py")


@pytest.fixture(scope="session")
def env() -> Environment:
    """SGLang on the CPU in the user's own cache: built once per machine (two minutes, 2.5 GB), by pip."""
    return environment.ensure("sglang-cpu")


@pytest.fixture(scope="session")
def tiny_qwen3(env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that thinks and calls a tool, made and trained here."""
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    subprocess.run([env.python, "-P", TINY_QWEN3, folder], check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A results folder whose store runs as long as this module's tests."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(processes.RUN_PROCESS_VARIABLE, str(ProcessId.here()))
        # None of these may have a say in the embedded store.
        patch.setenv("AWS_PROFILE", "nobody")
        patch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
        yield folder
        supervisor.stop(folder / ".store")


@pytest.fixture
def run(results: Path, request: pytest.FixtureRequest) -> Run:
    """A run of its own for each test."""
    return make_run(results, request.node.name.removeprefix("test_").replace("[", "-").rstrip("]"))


@pytest.fixture
def store(run: Run) -> Store:
    return open_store(run)


@pytest.fixture
def foreign(run: Run, monkeypatch: pytest.MonkeyPatch) -> "S3Client":
    access = embedded.ensure_started(run)
    monkeypatch.delenv("AWS_PROFILE")
    return raw_client(access)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, as this process sees it: no token, empty caches, no pauses worth their name."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hub, "WAITS", (0.01,) * 4)
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.01)
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running

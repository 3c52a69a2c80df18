"""The real parts that integration tests share, made once a session."""

import subprocess
from pathlib import Path

import pytest

from workflow_scripts.serving import environment
from workflow_scripts.serving.environment import Environment

TINY_QWEN3 = Path(__file__).with_name("tiny_qwen3.py")


@pytest.fixture(scope="session")
def env() -> Environment:
    """SGLang on the CPU in the user's own cache: built once per machine (two minutes, 2.5 GB), by pip."""
    return environment.ensure("sglang-cpu")


@pytest.fixture(scope="session")
def tiny_qwen3(env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that thinks, made and trained here."""
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    subprocess.run([env.python, "-P", TINY_QWEN3, folder], check=True, timeout=600)
    return folder

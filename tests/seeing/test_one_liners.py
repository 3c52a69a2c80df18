"""The one-liners of docs/watching.md, run as they stand there. They need zstd and jq."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin.made_run import SOURCES, make

DOCS = Path(__file__).parents[2] / "docs" / "watching.md"
LINES = re.findall(r"```sh\n(.*?)\n```", DOCS.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose results/demo is a finished run."""
    folder = tmp_path_factory.mktemp("one")
    run = make(folder / "results")
    (folder / "results" / "demo").symlink_to(run.name)
    return folder


@pytest.mark.parametrize(("what", "line"), [(("jq", "polars", "duckdb")[at], line) for at, line in enumerate(LINES)])
def test_a_one_liner(folder: Path, what: str, line: str) -> None:
    assert what in line and len(LINES) == 3
    line = line.replace("uv run python", sys.executable)
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "POLARS_FMT_MAX_ROWS": "50", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert all(source in done.stdout for source in SOURCES), done.stdout

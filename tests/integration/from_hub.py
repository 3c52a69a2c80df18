"""Datasets asked of the hub on this machine, with defaults for what a test does not care about."""

from pathlib import Path

import pytest

from workflow_scripts.errors import PlainError
from workflow_scripts.sources import download, hub
from workflow_scripts.sources.hub import Resolved

DATA = b"".join(b'{"row": %d}\n' % row for row in range(40_000))  # some 500 kB: large, it is of the store
SMALL = b'{"row": 0}\n'


def resolve(
    dataset: str = "o/d",
    config: str | None = None,
    split: str | list[str] | None = None,
    revision: str | None = None,
    files: list[str] | None = None,
) -> Resolved:
    return hub.resolve(dataset, config, split, revision, files or [])


def paths(resolved: Resolved) -> list[str]:
    return [file.path for file in resolved.files]


def fetch(resolved: Resolved, name: str | None = None) -> Path:
    file = next(file for file in resolved.files if name in (None, file.path))
    return download.fetch(resolved.dataset, resolved.revision, file, "source s")


def message(error: pytest.ExceptionInfo[PlainError]) -> str:
    """The plain line, after a look that it is one."""
    text = str(error.value)
    assert text and "\n" not in text
    return text


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]

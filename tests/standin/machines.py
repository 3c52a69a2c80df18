"""Recorded machines: what their tools print and their files hold, from tests/data/machines.

There is no GPU where these tests run: the texts are in the tools' own formats, with the figures that the cards' drivers
give. A tool or file that a machine's YAML does not name is not there.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from workflow_scripts.machine import Host, Machine, look
from workflow_scripts.machine.host import Answer

FOLDER = Path(__file__).parents[1] / "data" / "machines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def recorded(name: str, environ: Mapping[str, str] | None = None) -> Host:
    """The machine, with more environment variables if they are given."""
    held = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    failing = held.get("failing", {})
    tools, files = held["tools"], held["files"]

    def ask(argv: Sequence[str]) -> Answer | None:
        line = shlex.join(argv)
        if line in failing:
            return Answer(False, failing[line])
        return Answer(True, tools[line]) if line in tools else None

    def exists(path: str) -> bool:
        return path in held["paths"] or path in files

    return Host(ask=ask, read=files.get, exists=exists, environ={**held["environ"], **(environ or {})})


def machine(name: str, environ: Mapping[str, str] | None = None) -> Machine:
    """What is read off it."""
    return look(recorded(name, environ))

"""Recorded machines: what their tools print and their files hold, from tests/data/machines.

There is no GPU where these tests run: the texts are in the tools' own formats, with the figures that the cards' drivers
give. A tool or file that a machine's YAML does not name is not there.
"""

import shlex
import sys
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


TOOL = """#!{python}
import shlex, sys, yaml
held = yaml.safe_load(open({recorded!r}))
line = shlex.join([{tool!r}, *sys.argv[1:]])
sys.stdout.write(held["tools"].get(line, ""))
sys.exit(0 if line in held["tools"] else 9)
"""


def install_tools(name: str, folder: Path) -> None:
    """Put the machine's nvidia-smi into `folder`, as a program that prints what is recorded."""
    tool = folder / "nvidia-smi"
    folder.mkdir(parents=True, exist_ok=True)
    tool.write_text(TOOL.format(python=sys.executable, recorded=str(FOLDER / f"{name}.yaml"), tool="nvidia-smi"))
    tool.chmod(0o755)

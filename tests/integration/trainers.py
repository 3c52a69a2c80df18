"""The trainers' environment: speculators and SpecForge on top of the sglang-cpu environment, built once per machine."""

import hashlib
import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.serving import environment, installer
from workflow_scripts.serving.environment import Environment

PINS = Path(__file__).with_name("trainers.txt")
SCRIPT = Path(__file__).with_name("trainers_cpu.py")


def ensure(base: Environment) -> Path:
    """The environment's Python. Building takes half a minute and 300 MB."""
    digest = hashlib.sha256(PINS.read_bytes() + base.requirements_hash.encode()).hexdigest()[:12]
    folder = files.cache_home() / "envs" / f"trainers-{digest}"
    python = folder / "bin" / "python"
    marker = folder / environment.MARKER
    if marker.exists():
        return python
    with installer.one_builder(folder.with_name(f"{folder.name}.lock"), "the trainers' environment") as lock:
        if not marker.exists():
            venv.EnvBuilder(symlinks=True, with_pip=False, clear=True).create(folder)
            (packages,) = folder.glob("lib/python*/site-packages")
            (below,) = base.folder.glob("lib/python*/site-packages")
            (packages / "base.pth").write_text(f"{below}\n")
            log = folder.with_name(f"{folder.name}.log")
            log.write_bytes(b"")
            progress = installer.Progress("the trainers' environment", folder, log, len(installer.pins(PINS)))
            installer.run_pip(installer.install_command(python, PINS, nodeps=True), folder / "tmp", lock, progress)
            files.write_json(marker, {"name": "trainers", "bytes": installer.folder_bytes(folder)})
    return python


def run(python: Path, *arguments: str | Path, folder: Path) -> Any:
    """What trainers_cpu.py reports. It gets nothing of this environment, and no network."""
    report = folder / "report.json"
    environ = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    environ |= {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [python, "-P", SCRIPT, report, *arguments],
        cwd=folder,
        env=environ | {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(report.read_text())

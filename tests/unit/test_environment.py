"""Environments are built whole or not at all, by one builder at a time, from wheels made here."""

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.serving import environment
from workflow_scripts.serving.environment import Recipe

ROOT = Path(__file__).parents[2]
IMPORTS = ("python", "-c", "import tinypkg")


def make_wheel(folder: Path, name: str = "tinypkg", version: str = "1.0", requires: str = "") -> Path:
    """A wheel of one module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{member},,\n" for member in [*members, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in {**members, f"{info}/RECORD": record}.items():
            wheel.writestr(member, text)
    return path


@pytest.fixture
def envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An envs folder with `tiny`, whose one wheel lies in a folder that pip is set up with."""
    folder = tmp_path / "envs"
    folder.mkdir()
    (folder / "tiny.txt").write_text("# one package\ntinypkg==1.0\n")
    make_wheel(tmp_path / "wheels")
    monkeypatch.setattr(environment, "ENVS", folder)
    monkeypatch.setattr(environment, "RECIPES", {"tiny": Recipe(1, IMPORTS)})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    return folder


def run_python(env: environment.Environment, code: str) -> str:
    return subprocess.run([env.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_built_once_and_told(envs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = environment.ensure("tiny")
    said = capsys.readouterr().out
    assert "building the tiny environment: 1 package, about 1 MB, in" in said
    assert "built the tiny environment" in said
    assert run_python(env, "import tinypkg; print(tinypkg.VERSION)") == "1.0"
    assert env.folder.parent == files.cache_home() / "envs"
    assert env.folder.name == f"tiny-{env.requirements_hash[:12]}"
    assert env.bytes > 0
    assert not (env.folder / "tmp").exists()

    with files.file_lock(environment.lock_path(env)):  # whoever builds or uses it: a built one needs no lock
        assert environment.ensure("tiny") == env
    assert capsys.readouterr().out == ""


def test_its_home_is_the_base_interpreter_and_it_holds_nothing_of_ours(envs: Path) -> None:
    env = environment.ensure("tiny")
    assert run_python(env, "import sys; print(sys.base_prefix)") == sys.base_prefix
    assert run_python(env, "import importlib.util as u; print(u.find_spec('snakemake'))") == "None"
    assert run_python(env, "import importlib.util as u; print(u.find_spec('pip'))") == "None"


def test_only_pins_make_the_hash(envs: Path) -> None:
    first = environment.ensure("tiny")
    (envs / "tiny.txt").write_text("\n# other words\n\ntinypkg==1.0   # and here\n")
    assert environment.ensure("tiny") == first
    make_wheel(envs.parent / "wheels", version="1.1")
    (envs / "tiny.txt").write_text("tinypkg==1.1\n")
    second = environment.ensure("tiny")
    assert second.folder != first.folder
    assert run_python(second, "import tinypkg; print(tinypkg.VERSION)") == "1.1"


def test_packages_of_the_nodeps_file_bring_nothing_along(envs: Path) -> None:
    make_wheel(envs.parent / "wheels", "bigpkg", requires="Requires-Dist: not-anywhere\n")
    (envs / "tiny-nodeps.txt").write_text("bigpkg==1.0\n")
    env = environment.ensure("tiny")
    assert run_python(env, "import bigpkg, tinypkg; print('both')") == "both"


def test_hashes_are_checked(envs: Path) -> None:
    wheel = envs.parent / "wheels" / "tinypkg-1.0-py3-none-any.whl"
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (envs / "tiny.txt").write_text(f"tinypkg==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(PlainError, match="other bytes than the pinned ones"):
        environment.ensure("tiny")
    (envs / "tiny.txt").write_text(f"tinypkg==1.0 \\\n    --hash=sha256:{right}\n")
    assert environment.ensure("tiny").python.exists()


def test_a_missing_version_is_told_in_pips_words_and_leaves_nothing(envs: Path) -> None:
    (envs / "tiny.txt").write_text("tinypkg==2.0\n")
    with pytest.raises(PlainError) as caught:
        environment.ensure("tiny")
    message = str(caught.value)
    assert "ERROR: No matching distribution found for tinypkg==2.0" in message
    assert "pip config list" in message
    log = Path(message.split("All that pip said: ")[1])
    assert "tinypkg==2.0" in log.read_text()
    assert not list(files.cache_home().glob(f"envs/*/{environment.MARKER}"))
    make_wheel(envs.parent / "wheels", version="2.0")
    assert run_python(environment.ensure("tiny"), "import tinypkg; print(tinypkg.VERSION)") == "2.0"


def test_an_environment_that_does_not_start_is_none(envs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RECIPES", {"tiny": Recipe(1, ("python", "-c", "import nothere"))})
    with pytest.raises(PlainError, match="No module named 'nothere'"):
        environment.ensure("tiny")
    monkeypatch.setattr(environment, "RECIPES", {"tiny": Recipe(1, ("nothere", "version"))})
    with pytest.raises(PlainError, match="nothere can't be run: No such file"):
        environment.ensure("tiny")
    assert not list(files.cache_home().glob(f"envs/*/{environment.MARKER}"))


def test_settings_that_would_mislead_pip_are_dropped(
    envs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_USER", "1")
    assert run_python(environment.ensure("tiny"), "import tinypkg; print('here')") == "here"
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_told_before_anything_is_fetched(envs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(envs)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_400_000))
    with pytest.raises(PlainError, match=r"takes about 2 MB in .* which has 1 MB free"):
        environment.ensure("tiny")


def test_it_is_rebuilt_when_its_interpreter_is_gone(envs: Path) -> None:
    env = environment.ensure("tiny")
    env.python.unlink()
    env.python.symlink_to("/nowhere/python3")
    assert run_python(environment.ensure("tiny"), "import tinypkg; print('again')") == "again"


def test_an_unknown_environment_is_a_plain_error(envs: Path) -> None:
    with pytest.raises(PlainError, match="there is no environment 'nothere'"):
        environment.ensure("nothere")


BUILDER = """
import sys
from pathlib import Path
from workflow_scripts.serving import environment
environment.ENVS = Path(sys.argv[1])
environment.RECIPES = {"tiny": environment.Recipe(1, ("python", "-c", sys.argv[2]))}
environment.ensure("tiny")
"""


@pytest.fixture
def start_builder(envs: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process that ensures `tiny`; what it says goes to NAME.out."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, check: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", BUILDER, str(envs), check], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], object], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def said_by(pid: int) -> str:
    """A process' command line; "" once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_dead(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_two_builders_at_once_build_once(start_builder: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    check = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)"
    first = start_builder("first", check)
    wait_until(lambda: "building" in (tmp_path / "first.out").read_text())
    second = start_builder("second", check)
    wait_until(lambda: "waiting for another job that makes the tiny env" in (tmp_path / "second.out").read_text())
    gate.touch()
    assert first.wait(60) == 0
    assert second.wait(60) == 0
    assert "building" not in (tmp_path / "second.out").read_text()
    assert len(list(files.cache_home().glob("envs/tiny-*/draftmill.json"))) == 1


def test_a_builder_killed_in_pip_leaves_no_pip_and_nothing_that_looks_built(
    start_builder: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:  # an index that accepts and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "600")
        builder = start_builder("killed", "import tinypkg")
        connection, _ = silent.accept()  # pip is at work
        with connection:
            (pip_process,) = children(builder.pid)
            builder.send_signal(signal.SIGKILL)
            builder.wait()
            wait_until(lambda: is_dead(pip_process))
    (folder,) = [path for path in (files.cache_home() / "envs").iterdir() if path.is_dir()]
    assert folder.is_dir() and not (folder / environment.MARKER).exists()
    (folder / "left.txt").touch()

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    env = environment.ensure("tiny")
    assert env.folder == folder and not (folder / "left.txt").exists()
    assert run_python(env, "import tinypkg; print('whole')") == "whole"


def test_nobody_builds_while_a_dead_builders_child_still_writes(
    start_builder: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    builder = start_builder("slow", "import time; time.sleep(600)")
    wait_until(lambda: list(files.cache_home().glob("envs/tiny-*/lib/*/site-packages/tinypkg.py")))
    wait_until(lambda: any("sleep" in said_by(child) for child in children(builder.pid)))
    (lock,) = files.cache_home().glob("envs/tiny-*.lock")
    (child,) = children(builder.pid)
    inherited = [str(path.readlink()) for path in Path(f"/proc/{child}/fd").iterdir()]
    assert str(lock) in inherited
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    wait_until(lambda: is_dead(child))
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

"""Each recorded machine gets its environment, or everything that is in the way, with what to do."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.standin.machines import NAMES, machine
from workflow_scripts.config import Servers
from workflow_scripts.errors import PlainError
from workflow_scripts.serving import builds
from workflow_scripts.serving.environment import Environment

GLIBC = (2, 39)


def choose(name: str, environ: dict[str, str] | None = None, **servers: Any) -> builds.Choice:
    return builds.choose(Servers(**servers), machine(name, environ), GLIBC, "x86_64")


USED = {
    "1x_rtx_4090": "driver 580.95.05 is 580 or newer, and NVIDIA GeForce RTX 4090 is SM89",
    "8x_b200": "driver 580.95.05 is 580 or newer, and NVIDIA B200 is SM100",
    "8x_h100": "driver 580.105.08 is 580 or newer, and NVIDIA H100 80GB HBM3 is SM90",
    "8x_h200": "driver 590.48.01 is 580 or newer, and NVIDIA H200 is SM90",
    "8x_rtx_pro_6000": "driver 580.95.05 is 580 or newer, and NVIDIA RTX PRO 6000 Blackwell Server Edition is SM120",
    "broken_toolkit": "driver 580.95.05 is 580 or newer, and NVIDIA RTX PRO 6000 Blackwell Server Edition is SM120",
    "busy": "driver 580.105.08 is 580 or newer, and NVIDIA H100 80GB HBM3 is SM90",
    "mig": "driver 580.105.08 is 580 or newer, and NVIDIA H100 80GB HBM3 is SM90",
    "mixed": "driver 580.95.05 is 580 or newer, and NVIDIA RTX PRO 6000 Blackwell Server Edition is SM120",
}
REFUSED = {
    "4x_a100": "driver 550.163.01 is too old: SGLang for CUDA 13.0 needs 580 or newer. Install a newer driver, or name "
    "a Python with an SGLang for your driver's CUDA 12.4 as servers.python",
    "dead_driver": "NVIDIA's driver 580.95.05 is loaded, but nvidia-smi tells of no GPU (Failed to initialize NVML: "
    "Driver/library version mismatch): after a driver's update reboot, in a container ask for GPUs (--gpus all); "
    "servers.engine: sglang-cpu runs without a GPU",
    "no_gpu": "there is no NVIDIA driver here, and servers.engine: sglang needs one; servers.engine: sglang-cpu runs "
    "without a GPU",
}


def test_every_machine_is_judged() -> None:
    assert sorted({*USED, *REFUSED}) == NAMES


@pytest.mark.parametrize("name", USED)
def test_a_machine_gets_the_build_that_it_can_use(name: str) -> None:
    assert choose(name) == builds.Choice("sglang-cuda", f"SGLang for CUDA 13.0: {USED[name]}")


@pytest.mark.parametrize("name", REFUSED)
def test_a_machine_that_can_use_none_is_told_why(name: str) -> None:
    with pytest.raises(PlainError) as caught:
        choose(name)
    assert str(caught.value) == REFUSED[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_users_own_python_and_the_cpu_need_no_gpu(name: str) -> None:
    assert choose(name, python="/opt/sglang/bin/python").name == builds.OWN
    assert choose(name, engine="sglang-cpu").name == "sglang-cpu"


def test_all_that_is_in_the_way_is_told_at_once() -> None:
    old = machine("4x_a100")
    with pytest.raises(PlainError) as caught:
        builds.choose(Servers(), old, (2, 31), "aarch64")
    told = str(caught.value).splitlines()
    assert len(told) == 3
    assert "driver 550.163.01 is too old" in told[0]
    assert "x86_64, this is aarch64" in told[1]
    assert "glibc 2.31 is older than 2.34" in told[2]


def test_no_visible_gpu_is_told_as_that() -> None:
    with pytest.raises(PlainError, match="CUDA_VISIBLE_DEVICES leaves no GPU"):
        choose("8x_h100", {"CUDA_VISIBLE_DEVICES": ""})


def test_the_users_own_python_is_tried_once_and_held_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "env" / "bin" / "python"
    with pytest.raises(PlainError, match="python is not there; name the python of an environment with SGLang"):
        builds.ensure(Servers(python=str(python)))
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho sglang 0.5.30 imports\n")
    python.chmod(0o755)
    env = builds.ensure(Servers(python=str(python)), check=True)
    assert env == Environment(builds.OWN, python.parents[1], python, "", 0)
    assert capsys.readouterr().out.endswith("sglang 0.5.30 imports\n")
    assert builds.lock_paths(env) == []
    assert builds.variables(env) == {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    python.write_text(
        "#!/bin/sh\necho 'The NVIDIA driver on your system is too old (found version 12040)' >&2; exit 1\n"
    )
    with pytest.raises(PlainError) as caught:
        builds.ensure(Servers(python=str(python)), check=True)
    told = str(caught.value).splitlines()
    assert told[0] == f"servers.python: {python} can't run SGLang:"
    assert told[-1].startswith(
        "Known cause: the NVIDIA driver is older than this SGLang's CUDA needs: install a driver"
    )


def test_the_users_own_python_is_tried_with_the_tools_beside_it(tmp_path: Path) -> None:
    """FlashInfer and SGLang call `ninja`, which is not on the PATH of who has not activated the environment."""
    python, ninja = tmp_path / "bin" / "python", tmp_path / "bin" / "ninja"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nninja && echo sglang 0.5.30 imports\n")
    ninja.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    ninja.chmod(0o755)
    assert builds.ensure(Servers(python=str(python)), check=True).python == python


def test_an_old_driver_is_told_where_its_nvidia_smi_knows_no_compute_cap() -> None:
    found = machine("4x_a100")
    blind = replace(found, gpus=[], devices=[], refusal='Field "compute_cap" is not a valid field to query.')
    (told,) = builds.misfits(builds.BUILDS[0], blind, GLIBC, "x86_64")
    assert told == REFUSED["4x_a100"]


def test_mig_without_an_instance_is_not_blamed_on_the_environment() -> None:
    found = machine("mig")
    bare = [replace(gpu, mig=True, instances=[]) for gpu in found.gpus]
    told = builds.without_gpu(replace(found, gpus=bare, devices=[]))
    assert told is not None and told.startswith("MIG is on, and no GPU has an instance: make some")


def test_this_systems_c_library_is_read() -> None:
    found = builds.system_glibc()
    assert found is not None and found > (2, 17)
    assert subprocess.run([sys.executable, "-c", ""], check=True).returncode == 0

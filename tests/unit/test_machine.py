"""What is read off recorded machines: cards, driver, devices, toolkit."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.standin.machines import NAMES, machine, recorded
from workflow_scripts.machine import Host, gpus, here, host, look
from workflow_scripts.machine.host import Answer

SUMMARIES = {
    "1x_rtx_4090": "1x NVIDIA GeForce RTX 4090 (SM89, 26 GB); driver 580.95.05, CUDA 13.0",
    "4x_a100": "4x NVIDIA A100-SXM4-80GB (SM80, 86 GB); driver 550.163.01, CUDA 12.4",
    "8x_b200": "8x NVIDIA B200 (SM100, 192 GB); driver 580.95.05, CUDA 13.0",
    "8x_h100": "8x NVIDIA H100 80GB HBM3 (SM90, 86 GB); driver 580.105.08, CUDA 13.0",
    "8x_h200": "8x NVIDIA H200 (SM90, 151 GB); driver 590.48.01, CUDA 13.1",
    "8x_rtx_pro_6000": "8x NVIDIA RTX PRO 6000 Blackwell Server Edition (SM120, 103 GB); driver 580.95.05, CUDA 13.0",
    "broken_toolkit": "8x NVIDIA RTX PRO 6000 Blackwell Server Edition (SM120, 103 GB); driver 580.95.05, CUDA 13.0",
    "busy": "2x NVIDIA H100 80GB HBM3 (SM90, 86 GB); driver 580.105.08, CUDA 13.0",
    "dead_driver": "no NVIDIA GPU",
    "mig": "2x NVIDIA H100 80GB HBM3 (SM90, 86 GB); driver 580.105.08, CUDA 13.0",
    "mixed": "1x NVIDIA RTX PRO 6000 Blackwell Server Edition (SM120, 103 GB), "
    "2x NVIDIA GeForce RTX 4090 (SM89, 26 GB); driver 580.95.05, CUDA 13.0",
    "no_gpu": "no NVIDIA GPU",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_in_one_line(name: str) -> None:
    assert machine(name).summary() == SUMMARIES[name]


@pytest.mark.parametrize(
    ("name", "linked"),
    [("8x_h100", True), ("4x_a100", True), ("8x_rtx_pro_6000", False), ("mixed", False), ("no_gpu", False)],
)
def test_nvlink_is_read_off_the_matrix_and_not_its_legend(name: str, linked: bool) -> None:
    assert machine(name).linked == linked


def test_a_driver_that_is_loaded_and_does_not_answer_is_a_driver_without_cards() -> None:
    found = machine("dead_driver")
    assert found.driver == gpus.Driver("580.95.05", None)
    assert (found.gpus, found.devices) == ([], [])


def test_who_holds_a_card() -> None:
    first, second = machine("busy").gpus
    assert first.used == 71322 and second.holders == []
    assert first.holders == [gpus.Holder(41523, "/opt/vllm/bin/python3", 71310)]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, ["0", "1", "2"]),
        ("2, 0", ["2", "0"]),
        ("", []),
        ("-1", []),
        ("1,9,2", ["1"]),
        ("NoDevFiles", []),
        ("0,0", ["0", "0"]),
    ],
)
def test_devices_are_read_as_cuda_reads_them(allowed: str | None, names: list[str]) -> None:
    environ = {} if allowed is None else {"CUDA_VISIBLE_DEVICES": allowed}
    assert [device.name for device in machine("mixed", environ).devices] == names


def test_a_uuid_may_be_cut_short_and_is_the_same_device_as_its_number() -> None:
    whole = machine("mixed").devices[1]
    short = machine("mixed", {"CUDA_VISIBLE_DEVICES": whole.gpu.uuid[:12]}).devices
    assert [device.key for device in short] == [whole.key]
    assert short[0].name == whole.gpu.uuid[:12]
    assert machine("mixed", {"CUDA_VISIBLE_DEVICES": "GPU-"}).devices == []  # any of them


def test_of_a_card_in_mig_mode_there_are_its_instances() -> None:
    devices = machine("mig").devices
    assert [device.name.split("-")[0] for device in devices[:2]] == ["MIG", "MIG"]
    assert [device.mebibytes for device in devices] == [40960, 40960, 81559]
    assert devices[2].name == "1" and devices[2].instance is None
    one = machine("mig", {"CUDA_VISIBLE_DEVICES": devices[1].name}).devices
    assert [device.key for device in one] == [devices[1].key]


def test_the_toolkit_is_found_as_flashinfer_finds_it() -> None:
    good = machine("8x_h100").toolkit
    assert good is not None
    assert (good.home, good.nvcc, good.headers) == ("/usr/local/cuda", (13, 0), (13, 0))
    assert good.cccl and good.cudart and good.libcuda and machine("8x_h100").compiler
    assert machine("8x_h200").toolkit is None
    named = machine("8x_h100", {"CUDA_HOME": "/opt/cuda/"}).toolkit
    assert named is not None and (named.home, named.nvcc, named.headers) == ("/opt/cuda", None, None)


def test_what_a_toolkit_lacks() -> None:
    broken = machine("broken_toolkit").toolkit
    assert broken is not None
    assert (broken.nvcc, broken.headers) == ((13, 3), (13, 0))
    assert not (broken.cccl or broken.cudart or broken.libcuda)


def recorded_but(said: Callable[[Sequence[str], Answer | None], Answer | None], name: str = "8x_h100") -> Host:
    """A recorded machine, some of whose tools say something else."""
    host = recorded(name)
    return replace(host, ask=lambda argv: said(argv, host.ask(argv)))


def test_a_warning_and_a_failed_status_of_nvidia_smi_hide_no_card() -> None:
    """As with "WARNING: infoROM is corrupted at gpu 0000:3B:00.0", which ends with status 14."""

    def said(argv: Sequence[str], answer: Answer | None) -> Answer | None:
        if argv[0] != "nvidia-smi" or answer is None:
            return answer
        return Answer(False, f"WARNING: one, with, as, many, commas, as, a row\n{answer.text}WARNING: infoROM is bad\n")

    found = look(recorded_but(said))
    assert found.summary() == SUMMARIES["8x_h100"] and found.linked and found.refusal == ""
    assert [use.index for use in gpus.use(recorded_but(lambda argv, answer: Answer(False, USE)))] == ["0"]


USE = "WARNING: a, b, c, d, e\n0, NVIDIA H100 80GB HBM3, 12, 500, 81559\n"


def test_a_card_that_fell_off_the_bus_is_known_as_that_and_moves_no_other() -> None:
    def said(argv: Sequence[str], answer: Answer | None) -> Answer | None:
        if answer is None or not any(part.startswith("--query-gpu") for part in argv):
            return answer
        lines = answer.text.splitlines()
        lost = "2, [GPU is lost], NVIDIA H100 80GB HBM3, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]"
        return Answer(False, "\n".join([*lines[:1], lost, *lines[3:]]))  # of the second nothing is said

    found = look(replace(recorded_but(said), environ={"CUDA_VISIBLE_DEVICES": "0,2,7"}))
    assert [(device.gpu.index, device.gpu.lost) for device in found.devices] == [(0, False), (2, True), (7, False)]


def test_where_no_card_is_told_of_nvidia_smi_says_why() -> None:
    assert machine("dead_driver").refusal == "Failed to initialize NVML: Driver/library version mismatch"
    assert machine("no_gpu").refusal == "there is no nvidia-smi"


def test_a_tool_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "TOOL_SECONDS", 0.2)
    monkeypatch.setattr(host, "_HUNG", {})
    tool, asked = tmp_path / "nvidia-smi", tmp_path / "asked"
    tool.write_text(f"#!/bin/sh\necho >> {asked}\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = look(replace(here(), read=recorded("8x_h100").read))
    assert found.refusal == "nvidia-smi does not answer within 0 s"
    assert len(asked.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("allowed", "unknown"),
    [
        (None, None),
        ("", None),
        ("0,1,-1", None),
        ("NoDevFiles", None),
        ("0, 1", None),
        ("0,9,1", "9"),
        ("0,GPU-1234", "GPU-1234"),
        ("all", "all"),
    ],
)
def test_a_name_that_is_no_device_is_noticed(allowed: str | None, unknown: str | None) -> None:
    assert machine("mixed", {} if allowed is None else {"CUDA_VISIBLE_DEVICES": allowed}).unknown == unknown


def test_this_machine_can_be_looked_at() -> None:
    assert look(here()).summary()
    assert here().run(["sh", "-c", "echo out; echo err >&2"]) == "out\nerr\n"
    assert here().run(["false"]) is None and here().run(["no-such-tool"]) is None
    assert here().read("/no/such/file") is None

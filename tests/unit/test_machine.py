"""What is read off recorded machines: cards, driver, devices, toolkit."""

import pytest

from tests.standin.machines import NAMES, machine
from workflow_scripts.machine import gpus, here, look

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


def test_this_machine_can_be_looked_at() -> None:
    assert look(here()).summary()
    assert here().run(["sh", "-c", "echo out; echo err >&2"]) == "out\nerr\n"
    assert here().run(["false"]) is None and here().run(["no-such-tool"]) is None
    assert here().read("/no/such/file") is None

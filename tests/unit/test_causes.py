"""What SGLang, the linker and nvcc print, and the cause that is told for it. The texts are theirs."""

import pytest

from workflow_scripts.machine import Toolkit
from workflow_scripts.serving import causes

TOOLKIT = Toolkit("/usr/local/cuda", (13, 3), (13, 0), cccl=True, cudart=True, libcuda=True)

SAID = {
    "nvcc and the CUDA headers are of different versions (13.3 and 13.0 in /usr/local/cuda)": (
        "cuda_toolkit.h:39:6: error: "
        '#error "CUDA compiler and CUDA toolkit headers are incompatible, please check your include paths"'
    ),
    "CCCL's headers are missing: no nv/target in /usr/local/cuda/include": (
        "/usr/local/cuda/include/cuda_fp16.h:4492:10: fatal error: nv/target: No such file or directory"
    ),
    "the linker finds no libcudart.so in /usr/local/cuda/lib64": (
        "/usr/bin/ld: cannot find -lcudart: No such file or directory"
    ),
    "the linker finds no libcuda.so, the driver's stub": "/usr/bin/ld: cannot find -lcuda: No such file or directory",
    "there is no CUDA compiler (nvcc)": (
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"
    ),
    "there is no ninja": "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
    "there is no C++ compiler": "gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory",
    "FlashAttention 3 and 4 have no kernels for this card": (
        "NotImplementedError: flash_attn at sgl-kernel is only supported on sm90 and above"
    ),
    "the NVIDIA driver is older than this SGLang's CUDA needs": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."
    ),
    "the driver was updated, and the old one is still loaded": (
        "Failed to initialize NVML: Driver/library version mismatch"
    ),
    "the driver's library libcuda.so.1 is not here": (
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
    ),
    "pip took a CPU build of torch": "error: torch 2.14.1+cpu is a build without CUDA",
    "a library in the environment has no kernels for this card": (
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"
    ),
    "this system is older than the packages": "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found",
    "the GPU's memory does not hold the model": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 272.00 MiB"
    ),
}


@pytest.mark.parametrize("what", SAID)
def test_a_known_output_names_one_cause(what: str) -> None:
    (told,) = causes.named(f"INFO: starting\n{SAID[what]}\n", TOOLKIT)
    assert told.startswith(what)
    assert "{" not in told and len(told) > len(what) + 10  # with what to do


def test_every_cause_is_tried_here() -> None:
    assert len(SAID) == len(causes.CAUSES)


def test_what_is_fine_names_none() -> None:
    fine = "attention_backend='fa3' The server is fired up and ready to roll! nvcc: NVIDIA (R) Cuda compiler driver"
    assert causes.named(fine, None) == []


def test_the_output_stands_before_the_causes() -> None:
    told = causes.told("the build fails", "one\n\ntwo\n/usr/bin/ld: cannot find -lcuda: No such file", None)
    assert told.splitlines()[:4] == [
        "the build fails:",
        "  one",
        "  two",
        "  /usr/bin/ld: cannot find -lcuda: No such file",
    ]
    assert told.splitlines()[4].startswith("Known cause: the linker finds no libcuda.so")
    assert "$CUDA_HOME/lib64/stubs" in told

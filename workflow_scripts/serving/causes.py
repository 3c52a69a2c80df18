"""Why SGLang doesn't start on a GPU: what its output says, the cause that is known for it, and what to do."""

import re
from dataclasses import dataclass

from workflow_scripts.machine import Toolkit
from workflow_scripts.machine.toolkit import dotted

TAIL = 5


@dataclass(frozen=True)
class Cause:
    """A known trouble: a pattern of the output, what it means, what helps. {home} is the CUDA toolkit's folder."""

    pattern: str
    what: str
    fix: str


# What helps wherever the toolkit or a library is at fault: {instead}.
OF_USERS = "leave servers.python out, and the pinned environment is built, with a toolkit of one version in it"
OF_OURS = "remove the environment's folder, and run the same line again"

OUT_OF_MEMORY = r"OutOfMemoryError|CUDA out of memory|Not enough (GPU )?memory"

CAUSES = (
    Cause(
        r"CUDA compiler and CUDA toolkit headers are incompatible|unsupported toolkit version",
        "nvcc and the CUDA headers are of different versions ({versions})",
        "install one toolkit whole and point CUDA_HOME to it (is {home} a mix?); or {instead}",
    ),
    Cause(
        r"nv/target[>'\"]?: No such file",
        "CCCL's headers are missing: no nv/target in {home}/include",
        "install the toolkit's package cuda-cccl, of nvcc's version; or {instead}",
    ),
    Cause(
        r"cannot find -lcudart\b",
        "the linker finds no libcudart.so in {home}/lib64",
        "link it: ln -s lib {home}/lib64; ln -s libcudart.so.* {home}/lib64/libcudart.so; or {instead}",
    ),
    Cause(
        r"cannot find -lcuda\b",
        "the linker finds no libcuda.so, the driver's stub",
        "link the driver's own: mkdir -p {home}/lib64/stubs; ln -s /usr/lib/x86_64-linux-gnu/libcuda.so.1 "
        "{home}/lib64/stubs/libcuda.so",
    ),
    Cause(
        r"(?i)Could not find nvcc|nvcc: (command )?not found|No such file or directory: '[^']*nvcc'",
        "there is no CUDA compiler (nvcc), which kernels are built with when a server starts",
        "install a CUDA toolkit and point CUDA_HOME to it; or {instead}",
    ),
    Cause(
        r"No such file or directory: '[^']*ninja'|ninja: (command )?not found",
        "there is no ninja, which kernels are built with when a server starts",
        "install it into the environment (pip install ninja); or {instead}",
    ),
    Cause(
        r"cannot execute 'cc1plus'|[gc]\+\+: (command )?not found|No such file or directory: '[^']*[gc]\+\+'"
        r"|host compiler .* not found|failed to preprocess host compiler",
        "there is no C++ compiler, which nvcc needs",
        "install g++ (Debian, Ubuntu: apt-get install g++)",
    ),
    Cause(
        r"(?i)flash_?attn at sgl-kernel is only supported on|FlashAttention (v?[34] )?(is )?only support"
        r"|flash.?attention.{0,80}(sm_?120|not supported)|(fa3|fa4).{0,60}(not support|requires|only support)",
        "FlashAttention 3 and 4 have no kernels for this card",
        "set servers.args.attention-backend to flashinfer or triton",
    ),
    Cause(
        r"driver on your system is too old|CUDA driver version is insufficient",
        "the NVIDIA driver is older than this SGLang's CUDA needs",
        "install a driver of 580 or newer (CUDA 13), or name an environment for your CUDA as servers.python",
    ),
    Cause(
        r"Driver/library version mismatch",
        "the driver was updated, and the old one is still loaded",
        "reboot the machine",
    ),
    Cause(
        r"libcuda\.so\.1: cannot open shared object file",
        "the driver's library libcuda.so.1 is not here",
        "install NVIDIA's driver; start a container with GPUs (--gpus all)",
    ),
    Cause(
        r"is a build without CUDA",
        "pip took a CPU build of torch: its settings offer CPU wheels, which count as newer",
        "take the index of CPU wheels out of pip's settings (pip config list), remove the environment, and run the "
        "same line again",
    ),
    Cause(
        r"no kernel image is available for execution on the device",
        "a library in the environment has no kernels for this card",
        "set servers.args.attention-backend to triton; or {instead}",
    ),
    Cause(
        r"GLIBC(XX)?_[\d.]+' not found",
        "this system is older than the packages",
        "use a newer system or container (Ubuntu 22.04, RHEL 9)",
    ),
    Cause(
        OUT_OF_MEMORY,
        "the GPU's memory does not hold the model and its caches",
        "free the GPU (nvidia-smi tells who holds it), lower servers.args.mem-fraction-static or "
        "max-running-requests, or give a server more GPUs (servers.gpus_per_server)",
    ),
)  # fmt: skip


def named(output: str, toolkit: Toolkit | None) -> list[str]:
    """The known causes that an output shows, each with its fix, in the table's order."""
    home = toolkit.home if toolkit is not None else "$CUDA_HOME"
    instead = OF_OURS if "site-packages" in home else OF_USERS
    versions = f"{dotted(toolkit.nvcc)} and {dotted(toolkit.headers)} in {home}" if toolkit is not None else "unknown"
    return [
        f"{cause.what}: {cause.fix}".format(home=home, versions=versions, instead=instead)
        for cause in CAUSES
        if re.search(cause.pattern, output)
    ]


def told(what: str, output: str, toolkit: Toolkit | None) -> str:
    """`what` went wrong, the output's last lines, and the known causes."""
    lines = [line for line in output.splitlines() if line.strip()][-TAIL:]
    causes = [f"Known cause: {cause}" for cause in named(output, toolkit)]
    return "\n".join([f"{what}:", *(f"  {line}" for line in lines), *causes])


def is_out_of_memory(output: str) -> bool:
    """Whether a GPU's memory was at fault."""
    return re.search(OUT_OF_MEMORY, output) is not None

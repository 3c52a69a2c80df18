"""The CUDA toolkit that FlashInfer and SGLang build kernels with when a server starts, and what it lacks.

It is found as FlashInfer 0.7 finds it (flashinfer/jit/cpp_ext.py): CUDA_HOME or CUDA_PATH, the nvcc on PATH,
/usr/local/cuda. Kernels are linked with -lcudart and -lcuda against lib64 and lib64/stubs of that folder.
"""

import re
from dataclasses import dataclass

from workflow_scripts.machine.host import Host

DEFAULT_HOME = "/usr/local/cuda"
NVCC_RELEASE = re.compile(r"release (\d+)\.(\d+)")
HEADER_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")
HEADER = "include/cuda_runtime_api.h"
# CUDA 13 moved CCCL's headers into a folder of their own, which nvcc itself adds.
CCCL = ("include/nv/target", "include/cccl/nv/target")
CUDART = ("lib64/libcudart.so",)
LIBCUDA = (
    "lib64/stubs/libcuda.so",
    "/usr/lib/x86_64-linux-gnu/libcuda.so",
    "/usr/lib64/libcuda.so",
    "/usr/lib/libcuda.so",
    "/lib/x86_64-linux-gnu/libcuda.so",
)


@dataclass(frozen=True)
class Toolkit:
    """A toolkit's folder, the versions of its compiler and headers (None: not there), and whether it has the rest."""

    home: str
    nvcc: tuple[int, int] | None
    headers: tuple[int, int] | None
    cccl: bool
    cudart: bool
    libcuda: bool


def find(host: Host, home: str | None = None) -> Toolkit | None:
    """The toolkit at `home`, or the one that FlashInfer would find; None if there is none."""
    home = home or _home(host)
    if home is None:
        return None
    release = NVCC_RELEASE.search(host.run([f"{home}/bin/nvcc", "--version"]) or "")
    header = HEADER_VERSION.search(host.read(f"{home}/{HEADER}") or "")
    number = int(header[1]) if header else 0  # 13000 is 13.0
    return Toolkit(
        home=home,
        nvcc=(int(release[1]), int(release[2])) if release else None,
        headers=(number // 1000, number % 1000 // 10) if header else None,
        cccl=_any(host, home, CCCL),
        cudart=_any(host, home, CUDART),
        libcuda=_any(host, home, LIBCUDA),
    )


def _home(host: Host) -> str | None:
    named = host.environ.get("CUDA_HOME") or host.environ.get("CUDA_PATH")
    if named:
        return named.rstrip("/")
    nvcc = (host.run(["which", "nvcc"]) or "").strip()
    if nvcc.endswith("/bin/nvcc"):
        return nvcc.removesuffix("/bin/nvcc")
    return DEFAULT_HOME if host.exists(DEFAULT_HOME) else None


def _any(host: Host, home: str, paths: tuple[str, ...]) -> bool:
    return any(host.exists(path if path.startswith("/") else f"{home}/{path}") for path in paths)


def dotted(version: tuple[int, int] | None) -> str:
    """(13, 0) as 13.0."""
    return "unknown" if version is None else f"{version[0]}.{version[1]}"

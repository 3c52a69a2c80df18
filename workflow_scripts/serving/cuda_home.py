"""The CUDA toolkit inside the pinned environment, made whole: what NVIDIA's wheels leave out for the linker.

FlashInfer and SGLang build kernels when a server starts, with `-L$CUDA_HOME/lib64 -L$CUDA_HOME/lib64/stubs -lcudart
-lcuda` (flashinfer/jit/cpp_ext.py of 0.7). The wheels (nvidia/cu13) have neither lib64, nor libcudart.so without a
number, nor a stub of libcuda: https://github.com/flashinfer-ai/flashinfer/issues/5064. For a stub the driver's own
library serves.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

DRIVER_LIBRARY = "libcuda.so.1"
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib")
# Docker, Kubernetes and WSL put it elsewhere.
MORE_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/cuda/compat", "/usr/lib/wsl/lib")
VERSIONED = re.compile(r"^(lib(?:cudart|nvrtc)\.so)\.\d+$")

# Includes what FlashInfer's sources include: half precision, libcu++ (which compares nvcc with the headers), CCCL.
PROBE = """\
#include <cuda.h>
#include <cuda/std/version>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <nv/target>
__global__ void twice(__half* x) { x[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]); }
extern "C" int devices() { int n = 0; cuInit(0); cudaGetDeviceCount(&n); return n; }
"""


def find(folder: Path) -> Path | None:
    """The toolkit's folder in an environment; None if it has none."""
    return next(iter(sorted(folder.glob("lib/python3*/site-packages/nvidia/cu1*"))), None)


def complete(home: Path) -> None:
    """Make the links that the linker needs. It may be called at any time, and by several processes at once."""
    _link(home / "lib64", "lib")
    for path in (home / "lib").iterdir():
        if match := VERSIONED.match(path.name):
            _link(home / "lib" / match[1], path.name)
    if (driver := driver_library()) is not None:
        (home / "lib" / "stubs").mkdir(exist_ok=True)
        _link(home / "lib" / "stubs" / "libcuda.so", str(driver))


def _link(link: Path, target: str) -> None:
    if link.is_symlink() and str(link.readlink()) == target:
        return
    tmp = link.with_name(f".{link.name}.{os.getpid()}")
    tmp.unlink(missing_ok=True)
    tmp.symlink_to(target)
    tmp.replace(link)


def driver_library() -> Path | None:
    """The driver's libcuda.so.1; None without a driver."""
    listed = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    folders = [*listed, *LIBRARY_FOLDERS, *MORE_FOLDERS]
    return next((path for folder in folders if (path := Path(folder) / DRIVER_LIBRARY).exists()), None)


def variables(folder: Path) -> Mapping[str, str]:
    """CUDA_HOME of the environment at `folder`, its toolkit completed; none if it has none."""
    home = find(folder)
    if home is None:
        return {}
    complete(home)
    return {"CUDA_HOME": str(home), "CUDA_PATH": str(home)}


def clean_environ() -> dict[str, str]:
    """This process's environment without what would make another Python import our packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def probe_command(home: Path, sm: int | None, folder: Path) -> list[str]:
    """Write a small kernel into `folder`; the command that builds it as FlashInfer would, for the card at hand."""
    source = folder / "probe.cu"
    source.write_text(PROBE)
    arch = [f"-arch=sm_{sm}"] if sm else []
    libraries = [f"-L{home}/lib64", f"-L{home}/lib64/stubs", "-lcudart", "-lcuda"]
    return [
        f"{home}/bin/nvcc",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        *arch,
        str(source),
        "-o",
        f"{folder}/probe.so",
        *libraries,
    ]

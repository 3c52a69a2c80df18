"""The pins for GPUs resolve: one whole set of wheels for Linux, with SGLang's own requirements, and nothing else.

Nothing is downloaded but what packages say of themselves. uv asks the indexes that its settings name.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ENVS = Path(__file__).parents[2] / "envs"
PINS = ENVS / "sglang-cuda.txt"
NODEPS = ENVS / "sglang-cuda-nodeps.txt"
# outlines, which SGLang names and loads only on request, has no wheels for 3.13.
WITHOUT_OUTLINES = 'outlines==0.1.11 ; python_version < "3.13"\n'
TOOLKIT = re.compile(r"^nvidia-(cuda-(nvcc|crt|cccl|nvrtc|runtime)|nvvm|nvjitlink)==(\d+\.\d+)", re.MULTILINE)


def listed(text: str) -> set[str]:
    """The pins of a requirements text, without markers and comments."""
    return {line.split(";")[0].strip() for line in text.splitlines() if "==" in line and not line.startswith("#")}


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_pins_are_one_whole_set(version: str, tmp_path: Path) -> None:
    uv = shutil.which("uv")
    assert uv, "uv is not here: pip install uv"
    overrides = tmp_path / "overrides.txt"
    overrides.write_text(WITHOUT_OUTLINES)
    wanted = [line for line in PINS.read_text().splitlines() if "==" in line and not line.startswith("#")]
    if version == "3.13":
        wanted = [line for line in wanted if "python_version" not in line]
    done = subprocess.run(
        [
            *(uv, "pip", "compile", str(PINS), str(NODEPS), "--override", str(overrides)),
            *("--python-version", version, "--python-platform", "x86_64-manylinux_2_34", "--only-binary", ":all:"),
            *("--no-header", "--no-annotate", "--quiet", "--no-config"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert listed(done.stdout) == listed("\n".join(wanted)) | {"sglang==0.5.23"}


def test_cuda_is_of_one_version_and_sglang_that_of_the_cpu() -> None:
    versions = {match[3] for match in TOOLKIT.finditer(PINS.read_text())}
    assert versions == {"13.0"}
    assert "sglang==0.5.23" in (ENVS / "sglang-cpu-nodeps.txt").read_text()

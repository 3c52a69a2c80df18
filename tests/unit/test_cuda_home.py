"""The toolkit inside an environment is made whole for the linker."""

import os
from pathlib import Path

import pytest

from workflow_scripts.serving import cuda_home


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As NVIDIA's wheels leave it, beside a driver's library."""
    home = tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13"
    (home / "lib").mkdir(parents=True)
    for name in ("libcudart.so.13", "libnvrtc.so.13", "libcublas.so.13", "libcudart_static.a"):
        (home / "lib" / name).touch()
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{driver}")
    return home


def links(home: Path) -> dict[str, str]:
    found = [path for path in home.rglob("*") if path.is_symlink()]
    return {str(path.relative_to(home)): str(path.readlink()) for path in found}


def test_what_the_linker_asks_for_is_linked_as_often_as_it_is_called(toolkit: Path, tmp_path: Path) -> None:
    for _ in range(2):
        given = cuda_home.variables(tmp_path / "env")
        assert given == {"CUDA_HOME": str(toolkit), "CUDA_PATH": str(toolkit)}
        assert links(toolkit) == {
            "lib64": "lib",
            "lib/libcudart.so": "libcudart.so.13",
            "lib/libnvrtc.so": "libnvrtc.so.13",
            "lib/stubs/libcuda.so": str(tmp_path / "driver" / "libcuda.so.1"),
        }


def test_a_driver_that_moved_is_linked_anew(toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_home.complete(toolkit)
    other = tmp_path / "other"
    other.mkdir()
    (other / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other))
    cuda_home.complete(toolkit)
    assert links(toolkit)["lib/stubs/libcuda.so"] == str(other / "libcuda.so.1")


def test_an_environment_without_a_toolkit_has_no_variables(tmp_path: Path) -> None:
    assert cuda_home.variables(tmp_path) == {}


def test_the_probe_is_built_as_flashinfer_builds(toolkit: Path, tmp_path: Path) -> None:
    command = cuda_home.probe_command(toolkit, 120, tmp_path)
    assert command[0] == f"{toolkit}/bin/nvcc" and "-arch=sm_120" in command
    assert command[-4:] == [f"-L{toolkit}/lib64", f"-L{toolkit}/lib64/stubs", "-lcudart", "-lcuda"]
    assert "#include <nv/target>" in (tmp_path / "probe.cu").read_text()
    assert not any("arch" in word for word in cuda_home.probe_command(toolkit, None, tmp_path))


def test_no_other_python_imports_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    assert "PYTHONPATH" not in cuda_home.clean_environ()
    assert cuda_home.clean_environ()["PATH"] == os.environ["PATH"]

"""What is generated from pyproject.toml is as generated, and no pin names a download address."""

import re
import tomllib

from envs.generate import ROOT, pipeline_yaml, with_pins

PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_pipelines_conda_environment_is_generated() -> None:
    assert (ROOT / "envs" / "pipeline.yaml").read_text() == pipeline_yaml(PYPROJECT), "run python envs/generate.py"


def test_the_closure_pins_every_direct_dependency() -> None:
    project = tomllib.loads(PYPROJECT)
    names = {re.split(r"[=\[ ]", pin)[0] for pin in project["tool"]["uv"]["constraint-dependencies"]}
    direct = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *project["dependency-groups"]["lint"],
    ]
    assert len(names) > 100
    assert {re.split(r"[=<>\[ ]", requirement)[0] for requirement in direct} <= names


def test_no_pin_names_an_address() -> None:
    for path in [ROOT / "pyproject.toml", *(ROOT / "envs").glob("*.txt")]:
        assert not re.search(r"https?://|index-url|find-links", path.read_text()), path


def test_pins_are_taken_from_an_export() -> None:
    exported = "# comment\na==1 ; sys_platform == 'win32'\n    # via b\nb==2\n"
    pinned = tomllib.loads(with_pins(PYPROJECT, exported))
    assert pinned["tool"]["uv"]["constraint-dependencies"] == ["a==1 ; sys_platform == 'win32'", "b==2"]

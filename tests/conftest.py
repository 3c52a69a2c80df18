"""Projects that tests share: one is run to its end once, the others are copies of it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.standin.project import ROOT, Project
from workflow_scripts.serving import environment
from workflow_scripts.serving.environment import Environment

settings.register_profile("no deadline", deadline=None)  # a busy machine is no fault
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose run was made from nothing, by launched servers, and audited. Don't change it: copy it."""
    project = Project.make(tmp_path_factory.mktemp("finished") / "project")
    project.finish()
    return project


@pytest.fixture
def finished(finished_once: Project, tmp_path: Path) -> Iterator[Project]:
    """A finished project."""
    project = finished_once.copy(tmp_path / "project")
    yield project
    project.end_processes()


@pytest.fixture
def prepared(finished: Project) -> Project:
    """A project whose run is about to begin its first chunk."""
    finished.forget_answers()
    return finished


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Project]:
    """A project of which nothing was run."""
    project = Project.make(tmp_path / "project")
    yield project
    project.end_processes()


@pytest.fixture(scope="session")
def seaweedfs() -> Environment:
    """The embedded store's environment in the user's own cache: built once per machine (160 MB), by pip."""
    return environment.ensure("seaweedfs")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the project's tree, to be edited."""
    for name in ("Snakefile", "config", "envs", "profiles", "rules", "workflow_scripts"):
        source, target = ROOT / name, tmp_path / "clone" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(source, target)
    return tmp_path / "clone"

"""Each preset is planned as it is shipped, with no network, no GPU and nothing built."""

from pathlib import Path

import pytest

from tests.standin.project import ROOT, Project
from tests.workflow.test_plan import NOTHING_WORKS
from workflow_scripts import config

PRESETS = sorted((ROOT / "config" / "presets").glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_planned_anywhere(fresh: Project, path: Path) -> None:
    result = fresh.run("-n", configfile=str(path), **NOTHING_WORKS)
    assert result.code == 0, result.output
    parsed = config.parse(config.load_yaml(path), str(path))
    assert {f"Source {name}" for name in parsed.sources} < set(result.jobs)
    assert len([job for job in result.jobs if job.startswith("Chunk 0")]) == parsed.chunk_count()
    assert ("Publish the index" in result.jobs) == (parsed.publish.store != "none")
    assert not fresh.results.exists()

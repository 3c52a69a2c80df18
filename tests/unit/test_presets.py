"""The presets are configs, and hold the amounts that they speak of."""

from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import config
from workflow_scripts.config import Config
from workflow_scripts.sources import catalogue

PRESETS = Path(__file__).parents[2] / "config" / "presets"


def preset(name: str) -> Config:
    path = PRESETS / f"{name}.yaml"
    return config.parse(config.load_yaml(path), str(path))


def takes(parsed: Config) -> dict[str, Any]:
    return {name: source.take for name, source in parsed.sources.items()}


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_preset_is_a_config_named_after_its_file(path: Path) -> None:
    parsed = preset(path.stem)
    assert parsed.name == path.stem
    assert parsed.publish.prefix in ("", f"{path.stem}/")


def test_the_expansion_has_the_amounts_of_its_run() -> None:
    parsed = preset("expansion_v1")
    assert takes(parsed) == {
        "infinity_instruct": 99000,
        "webinstructsub": 40000,
        "codefeedback": 29000,
        "metamathqa": 24000,
        "hermes": 1200,
        "agent_training": 553,
    }
    assert parsed.prompts.total == 193010 <= sum(takes(parsed).values())
    assert parsed.chunk_count() == 387
    assert parsed.sampling.thinking and parsed.servers.count == 8
    assert parsed.publish.protect == ["completions/"]


def test_the_800k_has_the_amounts_of_its_run() -> None:
    parsed = preset("drafter_800k")
    got = takes(parsed)
    assert parsed.prompts.total == sum(got.values()) == 800_000
    assert got["nemotron"] == 400_000 and got["evol_codealpaca"] == 110_000
    assert got["agentic_coding"] == got["coderforge"] == 100_000
    assert sum(got[name] for name in ("ultrachat", "sharegpt", "oasst", "openorca", "lima")) == 80_000
    assert sum(got[name] for name in ("xlam", "glaive", "toolace", "hermes")) == 10_000


@pytest.mark.parametrize("name", ["expansion_v1", "drafter_800k"])
def test_a_gated_source_has_substitutes_that_are_not(name: str) -> None:
    known = catalogue.load()
    gated = [source for source in preset(name).sources.values() if source.use and known[source.use].gated]
    assert gated
    for source in gated:
        assert any(not known[other].gated for other in source.substitutes)

"""What pip says, as it is read."""

from pathlib import Path

import pytest

from workflow_scripts.errors import PlainError
from workflow_scripts.serving import installer

FETCHING = """\
Looking in links: /wheels
Processing /wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (from -r sglang-cpu.txt (line 91))
Collecting aiohttp==3.14.5 (from -r sglang-cpu.txt (line 6))
  Downloading aiohttp-3.14.5-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (8.1 kB)
Collecting anyio==4.16.0 (from -r sglang-cpu.txt (line 10))
  Using cached anyio-4.16.0-py3-none-any.whl (134 kB)
Downloading aiohttp-3.14.5-cp311-cp311-manylinux_2_28_x86_64.whl (1.9 MB)
"""


def test_how_far_counts_wheels_not_their_metadata() -> None:
    assert installer.how_far("", 5) == "fetched 0 of 5 packages"
    assert installer.how_far(FETCHING, 5) == "fetched 3 of 5 packages"
    assert installer.how_far(FETCHING, 2) == "fetched 3 of 3 packages"  # pip found requirements that have no pin


def test_how_far_knows_the_installing_of_each_file() -> None:
    first = FETCHING + "Installing collected packages: anyio, aiohttp, torch\n"
    assert installer.how_far(first, 5) == "installing the packages"
    second = first + "Successfully installed anyio aiohttp torch\nCollecting sglang==0.5.23\n"
    assert installer.how_far(second, 5) == "fetched 3 of 5 packages"


def test_pins_are_joined_and_bare(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("# a file\n\nb==2 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\na==1 # why\n")
    assert installer.pins(path) == ["b==2 --hash=sha256:aa --hash=sha256:bb", "a==1"]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "DRAFTMILL_HOME"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError(...)'\nERROR: No matching", "the network"),
        ("ERROR: Could not find a version that satisfies the requirement a==9", "3.11 to 3.13"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "don't use it"),
        ("ERROR: ResolutionImpossible: for help visit", "contradicts the pins"),
        ("ERROR: Exception:\nsomething new", "Run the same line again"),
    ],
)
def test_why_gives_pips_words_and_advice(tmp_path: Path, said: str, advice: str) -> None:
    progress = installer.Progress("the tiny environment", tmp_path, tmp_path / "pip.log", 1)
    message = installer.why(1, said, progress)
    assert message.startswith("the tiny environment could not be made: pip failed with status 1\n")
    assert next(line for line in said.splitlines() if line.startswith("ERROR")) in message
    assert advice in message
    assert message.endswith(str(tmp_path / "pip.log"))


def test_why_names_the_signal_and_knows_an_interruption(tmp_path: Path) -> None:
    progress = installer.Progress("it", tmp_path, tmp_path / "pip.log", 1)
    assert "ended by SIGKILL" in installer.why(-9, "Collecting a\n", progress)
    assert "interrupted" in installer.why(1, "ERROR: Operation cancelled by user\n", progress)


def test_check_room_passes_where_there_is_room(tmp_path: Path) -> None:
    installer.check_room("this", tmp_path, 0.001)
    with pytest.raises(PlainError, match="Make room"):
        installer.check_room("this", tmp_path, 1e12)

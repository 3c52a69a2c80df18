"""A disk that is full at every write, one after the other, and one that is read-only: a plain line, and nothing lost.

These mount small disks, so they need a mount namespace, in which any user may (`unshare --user --map-root-user
--mount`); the mounts are gone with it.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.standin.project import Project, Result

PROMPTS, SEATS = 24, 4


class Disk:
    """A tmpfs, which counts every file in whole pages; `kilobytes` is its size."""

    def __init__(self, folder: Path, kilobytes: int) -> None:
        self.folder = folder
        self.kilobytes = kilobytes
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], check=True)

    def mount_again(self, *options: str) -> None:
        subprocess.run(["mount", "-o", ",".join(["remount", *options]), self.folder], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)

    def grow(self, kilobytes: int) -> None:
        self.kilobytes += kilobytes
        self.mount_again(f"size={self.kilobytes}k")


@pytest.fixture
def mount() -> Iterator[Callable[[Path, int], Disk]]:
    """Mounts small disks, as long as the test lasts: a folder, and its size in kilobytes."""
    with ExitStack() as mounted:

        def make(folder: Path, kilobytes: int) -> Disk:
            disk = Disk(folder, kilobytes)
            mounted.callback(disk.unmount)
            return disk

        yield make


def walk(project: Project, disk: Disk, step: int) -> list[Result]:
    """Run the same line on a disk that is a little larger each time, until it ends well; the runs that failed."""
    failed = []
    while (result := project.run()).code != 0:
        failed.append(result)
        assert "Traceback" not in result.output, result.output
        assert "No space left on device" in result.output, result.output
        project.no_process_left()
        disk.grow(step)
    project.audit()
    return failed


def rules_of(failed: list[Result]) -> set[str]:
    """The rules whose jobs failed."""
    return {line.removeprefix("Error in rule ").rstrip(":") for r in failed for line in r.lines("Error in rule ")}


def test_results_fill_up_at_every_write(fresh: Project, mount: Callable[[Path, int], Disk]) -> None:
    disk = mount(fresh.results, 8)
    failed = walk(fresh, disk, step=8)
    assert rules_of(failed) >= {"source", "environment", "manifest", "split", "chunk", "export"}
    # A chunk that fails is tried three times; what was in flight each time is all that is asked again.
    assert len(fresh.requests()) <= PROMPTS + SEATS * 3 * len(failed)
    asked = fresh.requests("answered")
    assert {prompt: asked.count(prompt) for prompt in asked if asked.count(prompt) > 3} == {}


def test_the_whole_project_fills_up(tmp_path: Path, mount: Callable[[Path, int], Disk]) -> None:
    """Snakemake's own records too, and a log of about 16 KB for each failed start: a step is more than that."""
    disk = mount(tmp_path / "disk", 80)
    project = Project.make(tmp_path / "disk" / "project")
    project.logs = tmp_path / "logs"
    project.env["STANDIN_LOG"] = str(tmp_path / "requests.jsonl")
    walk(project, disk, step=48)


SAYS = "Read-only file system; make it writable", "can't be written to: nothing can be made there"


@pytest.mark.parametrize("finished", [False, True])
def test_read_only_results(fresh: Project, mount: Callable[[Path, int], Disk], finished: bool) -> None:
    disk = mount(fresh.results, 10_000)
    if finished:
        fresh.finish()
    disk.mount_again("ro")
    assert fresh.run("-n").code == 0
    fresh.config["training"]["max_tokens"] = 50  # something to do
    result = fresh.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert any(line in result.output for line in SAYS), result.output
    disk.mount_again("rw")
    fresh.finish()
    assert len(fresh.requests()) == PROMPTS

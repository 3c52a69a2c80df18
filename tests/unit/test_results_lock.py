"""The lock of a results folder, and how its holder is named."""

import errno
import fcntl
import getpass
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from workflow_scripts import processes, results_lock
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId

HERE = ProcessId.here()


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Path]:
    """A results folder whose lock somebody holds."""
    held = tmp_path / ".lock"
    with held.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tmp_path


def write(results: Path, **changes: Any) -> None:
    holder = HERE.to_json() | {"user": "ada", "run": "small-1", "since": 0} | changes
    (results / ".lock").write_bytes(orjson.dumps(holder))


def refusal(results: Path) -> str:
    with pytest.raises(PlainError) as error:
        results_lock.take(results, "small-2")
    return str(error.value)


def test_a_run_on_this_host_is_named(results: Path) -> None:
    write(results)
    says = (
        rf"{re.escape(str(results))} is in use by run small-1: process {os.getpid()} of ada on "
        rf"{HERE.host}, since \d{{4}}-\d\d-\d\d \d\d:\d\d; wait for it or end it. Dry runs are free"
    )
    assert re.fullmatch(says, refusal(results))


def test_a_run_on_another_host_is_named(results: Path) -> None:
    write(results, host="node7", boot_id="another")
    assert " of ada on node7, since " in refusal(results)


def test_a_run_in_a_container_is_named(results: Path) -> None:
    write(results, host="3f2a9c1b7d5e", boot_id=f"{processes.machine_boot_id()}:1")
    assert " on 3f2a9c1b7d5e, a container on this machine (or the machine itself" in refusal(results)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_holder_that_did_not_say_who_it_is(results: Path, text: bytes) -> None:
    (results / ".lock").write_bytes(text)
    assert "is in use by another run; wait for it" in refusal(results)


def test_the_lock_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    says = refusal(tmp_path)
    assert f"{tmp_path}/.lock is {getpass.getuser()}'s, last held by " in says and "results folder of your own" in says


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert "is on a file system without locks (No locks available)" in refusal(tmp_path)


def test_the_lock_is_taken_and_says_who_holds_it(tmp_path: Path) -> None:
    results_lock.take(tmp_path / "new", "small-3")
    held = orjson.loads((tmp_path / "new" / ".lock").read_bytes())
    assert ProcessId.from_json(held) == HERE and (held["run"], held["user"]) == ("small-3", getpass.getuser())
    results_lock.take(tmp_path / "new", "small-3")  # twice is once
    with (tmp_path / "new" / ".lock").open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_machine_that_was_renamed_is_still_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert HERE.on_this_host() and HERE.alive()


def test_a_container_is_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = f"{processes.machine_boot_id()}:1"
    monkeypatch.setattr(processes, "boot_id", lambda: inside)
    assert not HERE.on_this_host() and not HERE.alive()

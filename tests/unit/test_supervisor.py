import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import RUN_PROCESS_VARIABLE, ProcessId
from workflow_scripts.serving import supervisor, supervisor_process
from workflow_scripts.serving.supervisor import Service, State, folder_id, is_live, read_state

SERVICE = Service(
    name="server 0",
    argv=["python", "server.py"],
    env={"PATH": "/bin"},
    cwd="/tmp",
    ready_url="http://127.0.0.1:1/health",
    ready_status=200,
    start_timeout=1.0,
    grace=2.0,
    hold_locks=["/tmp/lock"],
    facts={"url": "http://127.0.0.1:1"},
)


def a_state(**changes: object) -> State:
    here = ProcessId.here()
    state = State("server 0", "ready", 3, here, here, here, here.pid, 2.0, {"url": "u"}, "")
    return replace(state, **changes)  # type: ignore[arg-type]


def write_state(folder: Path, **changes: object) -> State:
    """The state of the service in `folder`."""
    state = a_state(folder=folder_id(folder), **changes)
    files.write_json(folder / "state.json", state.to_json())
    return state


def dead(process: ProcessId) -> ProcessId:
    """The identity of an earlier process that had the same pid."""
    return replace(process, start=process.start - 1)


def test_a_service_and_its_state_pass_through_json(tmp_path: Path) -> None:
    assert Service.from_json(json.loads(json.dumps(SERVICE.to_json()))) == SERVICE
    failed = {"run": None, "service": None, "group": None, "status": "failed", "reason": "it exited with 1"}
    for changes in ({}, failed):
        assert write_state(tmp_path, **changes) == read_state(tmp_path)


def test_no_state_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    assert supervisor.reap(tmp_path) == []
    supervisor.stop(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_state_is_live_while_it_is_ready_and_those_it_hangs_on_live() -> None:
    here = ProcessId.here()
    assert is_live(a_state())
    assert is_live(a_state(run=None))
    assert not is_live(a_state(status="starting"))
    assert not is_live(a_state(supervisor=dead(here)))
    assert not is_live(a_state(run=dead(here)))
    assert not is_live(a_state(supervisor=replace(here, boot_id="another")))


def test_a_live_service_is_not_made_again(tmp_path: Path) -> None:
    state = write_state(tmp_path)

    def make() -> Service:
        raise AssertionError("made")

    assert supervisor.ensure(tmp_path, make) == state


class Made(Exception):
    """A service was made for a start."""


def make_anew() -> Service:
    raise Made


def test_a_copy_of_the_folder_takes_nothing_of_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, copy, renamed = tmp_path / "original", tmp_path / "copy", tmp_path / "renamed"
    original.mkdir()
    monkeypatch.setenv(RUN_PROCESS_VARIABLE, str(ProcessId.here()))
    state = write_state(original)
    supervisor.ensure(original, make_anew)
    shutil.copytree(original, copy)
    assert read_state(copy) is None and supervisor.registered_runs(copy) == []
    supervisor.stop(copy)  # it would end this process
    with pytest.raises(Made):
        supervisor.ensure(copy, make_anew)
    assert supervisor.registered_runs(copy) == [ProcessId.here()]
    original.rename(renamed)
    assert supervisor.ensure(renamed, make_anew) == state
    assert supervisor.registered_runs(renamed) == [ProcessId.here()]


def test_a_state_that_names_no_folder_is_not_taken(tmp_path: Path) -> None:
    value = write_state(tmp_path).to_json()
    del value["folder"]
    files.write_json(tmp_path / "state.json", value)
    assert read_state(tmp_path) is None


def test_what_make_service_says_comes_through_and_frees_the_start(tmp_path: Path) -> None:
    def make() -> Service:
        raise PlainError("the model is gated")

    for _ in range(2):
        with pytest.raises(PlainError, match="the model is gated"):
            supervisor.ensure(tmp_path, make)
    assert read_state(tmp_path) is None


def test_a_folder_in_use_on_another_host_is_refused(tmp_path: Path) -> None:
    elsewhere = replace(ProcessId.here(), host="node7", boot_id="another")
    files.write_json(tmp_path / "state.json", a_state(supervisor=elsewhere, folder="another device").to_json())
    with (
        files.file_lock(tmp_path / "supervisor.lock"),
        pytest.raises(PlainError, match="server 0 is run from host node7"),
    ):
        supervisor.ensure(tmp_path, lambda: SERVICE)


def test_nothing_of_another_host_or_of_a_live_supervisor_is_reaped(tmp_path: Path) -> None:
    here = ProcessId.here()
    for owner in (here, replace(here, boot_id="another")):
        write_state(tmp_path, supervisor=owner)
        assert supervisor.reap(tmp_path) == []


def test_each_run_is_registered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(tmp_path)
    here = ProcessId.here()
    for run in (str(here), str(here), "", str(replace(here, host="node7", boot_id="another"))):
        monkeypatch.setenv(RUN_PROCESS_VARIABLE, run)
        supervisor.ensure(tmp_path, lambda: SERVICE)
    assert supervisor.registered_runs(tmp_path) == [here]


@pytest.mark.parametrize(
    "code, reason",
    [
        (3, "it exited with 3"),
        (-15, "it was killed by SIGTERM"),
        (-9, "it was killed by SIGKILL, perhaps for want of memory"),
        (-40, "it was killed by signal 40"),
    ],
)
def test_exit_reasons(code: int, reason: str) -> None:
    assert supervisor_process._exit_reason(code) == reason

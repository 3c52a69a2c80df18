"""Every death around a supervised service, with real processes: no survivor, and a message that says why."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from workflow_scripts import files, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import RUN_PROCESS_VARIABLE, ProcessId
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.supervisor import Service, State

DEADLINE = 30.0  # seconds; far more than anything here takes

# A server with a child, a child whose child leaves the session and ignores SIGTERM, and the child of a dead one.
# It writes the pids of all, and answers /ready with 200 and all else with 404.
SERVER = """
import http.server, os, pathlib, signal, subprocess, sys, time
pids, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
escape = "import os, signal; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); " + sleeper
parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); " + sleeper
leaver = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
with pids.open("ab") as out:
    out.write(b"%d\\n" % os.getpid())
    out.flush()
    for argv in ([sleeper], [parent, escape], [leaver, sleeper]):
        subprocess.Popen([sys.executable, "-c", *argv], stdout=out)
while len(pids.read_text().split()) < 5:
    time.sleep(0.05)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

RUN = "import time; time.sleep(600)"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.05)


class World:
    """A fake run, a service's folder, and all that was started for them."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "servers" / "0"
        self.pids = tmp_path / "pids"
        self.made = 0
        self.runs: list[subprocess.Popen[bytes]] = []
        self.seen: set[ProcessId] = set()

    def start_run(self) -> subprocess.Popen[bytes]:
        run = subprocess.Popen(
            [sys.executable, "-c", RUN],
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup ignores
        )
        self.runs.append(run)
        return run

    def service(self) -> Service:
        """The server above, as `make_service` gives it."""
        self.made += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return Service(
            name="server 0",
            argv=[sys.executable, "-c", SERVER, str(self.pids), str(port)],
            env=dict(os.environ),
            cwd=str(self.folder),
            ready_url=f"http://127.0.0.1:{port}/ready",
            ready_status=200,
            start_timeout=DEADLINE,
            grace=1.0,
            facts={"url": f"http://127.0.0.1:{port}"},
        )

    def ensure(self) -> State:
        state = supervisor.ensure(self.folder, self.service)
        self.note()
        return state

    def note(self) -> None:
        """Remember what lives, by identity: pids are reused."""
        state = supervisor.read_state(self.folder)
        if state is not None:
            self.seen |= {process for process in (state.supervisor, state.service) if process is not None}
        if self.pids.exists():
            found = {ProcessId.of(int(pid)) for pid in self.pids.read_text().split()}
            self.seen |= {process for process in found if process is not None}

    def survivors(self) -> list[ProcessId]:
        return [process for process in self.seen if process.alive()]

    def all_gone(self) -> None:
        until(lambda: not self.survivors())

    def close(self) -> None:
        self.note()
        for process in self.survivors():
            os.kill(process.pid, signal.SIGKILL)
        for run in self.runs:
            run.kill()
            run.wait()
        supervisor.stop(self.folder)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    run = ProcessId.of(world.start_run().pid)
    monkeypatch.setenv(RUN_PROCESS_VARIABLE, str(run))
    yield world
    world.close()


def last_state(world: World) -> State:
    state = supervisor.read_state(world.folder)
    assert state is not None
    return state


def test_a_service_comes_up_once_and_stops(world: World) -> None:
    first = world.ensure()
    assert len(world.survivors()) == 6
    assert first.status == "ready" and supervisor.is_live(first) and first.started == 1
    assert first.facts["url"].startswith("http://127.0.0.1:")
    assert first.service is not None and first.group == os.getpgid(first.service.pid) == first.service.pid
    assert os.getsid(first.service.pid) == first.supervisor.pid != os.getsid(0)
    assert world.ensure() == first and world.made == 1
    assert {path.name: path.stat().st_mode & 0o777 for path in world.folder.glob("*.log")} == {
        "service.log": 0o600,
        "supervisor.log": 0o600,
    }
    assert (world.folder / "state.json").stat().st_mode & 0o777 == 0o600
    assert not (world.folder / "service.json").exists()

    supervisor.stop(world.folder)
    assert world.survivors() == []
    assert last_state(world).status == "ended" and "SIGTERM" in last_state(world).reason
    assert world.ensure().started == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_run_dies(world: World, number: signal.Signals) -> None:
    world.ensure()
    world.runs[0].send_signal(number)
    world.all_gone()
    assert last_state(world).status == "ended"
    assert last_state(world).reason == f"the run's Snakemake, process {world.runs[0].pid}, is gone"
    assert (world.folder / "supervisor.log").read_bytes() == b""


def test_the_run_dies_while_the_service_starts(world: World) -> None:
    service = replace(world.service(), ready_url="http://127.0.0.1:1/")
    errors: list[PlainError] = []

    def start() -> None:
        with pytest.raises(PlainError) as error:
            supervisor.ensure(world.folder, lambda: service)
        errors.append(error.value)

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: world.pids.exists() and len(world.pids.read_text().split()) == 5)
    world.note()
    world.runs[0].kill()
    world.all_gone()
    thread.join()
    assert f"server 0 did not start: the run's Snakemake, process {world.runs[0].pid}, is gone" in str(errors[0])


def test_a_second_run_keeps_the_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.ensure()
    second_run = ProcessId.of(world.start_run().pid)
    monkeypatch.setenv(RUN_PROCESS_VARIABLE, str(second_run))
    assert world.ensure() == first
    world.runs[0].kill()
    until(lambda: last_state(world).run == second_run)
    assert world.ensure().service == first.service and world.made == 1
    world.runs[1].kill()
    world.all_gone()


def test_without_a_run_the_service_lives_until_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_PROCESS_VARIABLE)
    state = world.ensure()
    assert state.run is None
    assert not processes.wait_for_death(state.supervisor, 1.0)
    supervisor.stop(world.folder)
    assert world.survivors() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_service_dies(world: World, number: signal.Signals) -> None:
    first = world.ensure()
    assert first.service is not None
    os.kill(first.service.pid, number)
    world.all_gone()
    assert last_state(world).status == "failed"
    assert f"it was killed by {number.name}" in last_state(world).reason
    second = world.ensure()
    assert second.started == 2 and second.service != first.service and world.made == 2


def test_the_supervisor_is_killed_and_reaped(world: World) -> None:
    first = world.ensure()
    assert first.service is not None
    os.kill(first.supervisor.pid, signal.SIGKILL)
    assert processes.wait_for_death(first.service, DEADLINE)
    assert not supervisor.is_live(first)
    assert len(supervisor.reap(world.folder)) == 4
    assert world.survivors() == []
    assert supervisor.reap(world.folder) == []


def test_what_a_killed_supervisor_left_is_not_ended_from_a_copy_of_the_folder(world: World, tmp_path: Path) -> None:
    first = world.ensure()
    os.kill(first.supervisor.pid, signal.SIGKILL)
    assert first.service is not None
    until(lambda: not first.supervisor.alive() and first.service is not None and not first.service.alive())
    shutil.copytree(world.folder, tmp_path / "copy")
    assert supervisor.reap(tmp_path / "copy") == []
    assert len(world.survivors()) == 4
    world.folder = world.folder.rename(tmp_path / "renamed")
    assert len(supervisor.reap(world.folder)) == 4


def test_the_next_start_reaps_what_a_killed_supervisor_left(world: World) -> None:
    first = world.ensure()
    left = {process for process in world.seen if process not in (first.supervisor, first.service)}
    os.kill(first.supervisor.pid, signal.SIGKILL)
    assert processes.wait_for_death(first.supervisor, DEADLINE)  # until then its service is as good as alive
    second = world.ensure()
    assert len(left) == 4
    until(lambda: not any(process.alive() for process in left))
    assert second.started == 2 and supervisor.is_live(second)


def test_a_supervisor_killed_during_the_start(world: World) -> None:
    service = replace(world.service(), ready_url="http://127.0.0.1:1/")
    errors: list[PlainError] = []

    def start() -> None:
        with pytest.raises(PlainError) as error:
            supervisor.ensure(world.folder, lambda: service)
        errors.append(error.value)

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: world.pids.exists() and len(world.pids.read_text().split()) == 5)
    world.note()
    os.kill(last_state(world).supervisor.pid, signal.SIGKILL)
    thread.join()
    assert world.survivors() == []
    assert "server 0 did not start: its supervisor died" in str(errors[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_supervisor_is_asked_to_end(world: World, number: signal.Signals) -> None:
    first = world.ensure()
    os.kill(first.supervisor.pid, number)
    world.all_gone()
    assert last_state(world).status == "ended" and number.name in last_state(world).reason


def test_the_service_never_gets_ready(world: World) -> None:
    service = replace(world.service(), ready_url="http://127.0.0.1:1/", start_timeout=2.0)
    with pytest.raises(
        PlainError, match=r"server 0 did not start: http://127.0.0.1:1/ was not ready in 2 s \(no answer"
    ):
        supervisor.ensure(world.folder, lambda: service)
    world.note()
    assert world.survivors() == []
    assert last_state(world).status == "failed"


def test_the_port_answers_another_status(world: World) -> None:
    service = world.service()
    service = replace(service, ready_url=service.ready_url.replace("/ready", "/other?x=1"), start_timeout=3.0)
    with pytest.raises(PlainError, match=r"/other\?x=1 was not ready in 3 s \(it answers 404\)"):
        supervisor.ensure(world.folder, lambda: service)
    world.note()
    assert world.survivors() == []


def test_the_service_exits_with_a_traceback(world: World) -> None:
    code = "print('loading', flush=True)\nraise RuntimeError('no kernel \\x1b[31mimage\\x07 for this GPU')"
    service = replace(world.service(), argv=[sys.executable, "-c", code])
    with pytest.raises(PlainError) as error:
        supervisor.ensure(world.folder, lambda: service)
    log = world.folder / "service.log"
    assert str(error.value) == (
        f"server 0 did not start: it exited with 1. From {log}:\n  RuntimeError: no kernel image for this GPU"
    )
    world.note()
    assert world.survivors() == []


def test_a_program_that_is_not_there(world: World) -> None:
    service = replace(world.service(), argv=["/nowhere/python"])
    with pytest.raises(PlainError, match=r"server 0 did not start: .*/nowhere/python"):
        supervisor.ensure(world.folder, lambda: service)
    world.note()
    assert world.survivors() == []


ENSURE = """
import sys
from pathlib import Path
from workflow_scripts.errors import PlainError
from workflow_scripts.serving.supervisor import Service, ensure
from workflow_scripts import files
folder, spec, made = map(Path, sys.argv[1:])
def make():
    with made.open("a") as out:
        out.write("made\\n")
    return Service.from_json(files.read_json(spec))
try:
    print(ensure(folder, make).service)
except PlainError as error:
    print(f"error: {error}")
"""


def ensure_at_once(world: World, service: Service, tmp_path: Path, count: int) -> tuple[list[str], int]:
    """What `count` processes that ensure the same service at once print, and how often it was made."""
    spec, made = tmp_path / "spec.json", tmp_path / "made"
    files.write_json(spec, service.to_json())
    argv = [sys.executable, "-c", ENSURE, str(world.folder), str(spec), str(made)]
    asked = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=supervisor.PROJECT) for _ in range(count)]
    said = [process.communicate(timeout=DEADLINE)[0].strip() for process in asked]
    world.note()
    return said, len(made.read_text().split())


def test_two_at_once_start_one_service(world: World, tmp_path: Path) -> None:
    said, made = ensure_at_once(world, world.service(), tmp_path, 3)
    state = last_state(world)
    assert said == [str(state.service)] * 3 and made == 1 and state.started == 1
    assert supervisor.is_live(state)  # the process that started it has ended


def test_one_failed_start_is_told_to_all_that_waited(world: World, tmp_path: Path) -> None:
    code = "import time; time.sleep(3); raise SystemExit('Error: no such model')"
    service = replace(world.service(), argv=[sys.executable, "-c", code])
    said, made = ensure_at_once(world, service, tmp_path, 3)
    assert len(set(said)) == 1 and re.match(r"error: server 0 did not start: it exited with 1", said[0]), said
    assert "no such model" in said[0]
    assert made == 1


def test_a_start_goes_on_when_its_starter_is_killed(world: World, tmp_path: Path) -> None:
    spec, made = tmp_path / "spec.json", tmp_path / "made"
    files.write_json(spec, world.service().to_json())
    argv = [sys.executable, "-c", ENSURE, str(world.folder), str(spec), str(made)]
    starter = subprocess.Popen(argv, stdout=subprocess.DEVNULL, cwd=supervisor.PROJECT)
    until(lambda: (world.folder / "state.json").exists())
    starter.kill()
    starter.wait()
    assert world.ensure().started == 1
    assert made.read_text() == "made\n" and world.made == 1  # 1: the spec above


def test_a_second_supervisor_refuses(world: World) -> None:
    world.ensure()
    argv = [sys.executable, "-m", "workflow_scripts.serving.supervisor_process", str(world.folder)]
    second = subprocess.run(argv, capture_output=True, text=True, cwd=supervisor.PROJECT, timeout=DEADLINE)
    assert second.returncode == 1
    assert second.stderr == f"error: {world.folder} has a supervisor already\n"


def test_what_a_killed_service_left_in_its_scratch_folder_is_removed(world: World, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    service = replace(world.service(), scratch=str(scratch))
    for victim in ("supervisor", "service"):  # what the killed supervisor could not remove, the next start does
        supervisor.ensure(world.folder, lambda: service)
        world.note()
        assert list(scratch.iterdir()) == []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(scratch / "s3.sock"))
        state = last_state(world)
        process = state.supervisor if victim == "supervisor" else state.service
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        assert processes.wait_for_death(state.supervisor, DEADLINE)
    assert not scratch.exists()


def test_locks_are_held_while_the_service_lives(world: World, tmp_path: Path) -> None:
    lock = tmp_path / "environment.lock"
    service = replace(world.service(), hold_locks=[str(lock)])
    supervisor.ensure(world.folder, lambda: service)
    world.note()
    with files.file_lock(lock, shared=True, wait=False):
        pass
    with pytest.raises(files.Locked), files.file_lock(lock, wait=False):
        pass
    supervisor.stop(world.folder)
    with files.file_lock(lock, wait=False):
        pass

"""The supervisor's own process: `python -m workflow_scripts.serving.supervisor_process FOLDER` (see supervisor)."""

import http.client
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal
from urllib.parse import urlsplit

from workflow_scripts import files, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId
from workflow_scripts.serving import service_log
from workflow_scripts.serving.supervisor import (
    LEFTOVERS_GRACE,
    MARK,
    Service,
    State,
    folder_id,
    read_state,
    registered_runs,
)


@dataclass(frozen=True)
class _Event:
    """What wakes the supervisor: the death of a child or of the run, the service's readiness, a reason to end."""

    kind: Literal["child", "run", "ready", "end"]
    reason: str = ""


class _Supervisor:
    def __init__(self, folder: Path, service: Service, state: State) -> None:
        self.folder = folder
        self.service = service
        self.state = state
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()  # its put() is safe in signal handlers
        self.process: subprocess.Popen[bytes] | None = None
        self.closing = threading.Event()
        self.last_answer = "no answer"
        self.exit_code: int | None = None

    def write(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        files.write_json(self.folder / "state.json", self.state.to_json(), mode=0o600)

    def run(self) -> None:
        """Start the service, wait for the first reason to end it, end it with all that it started."""
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end_signal)
        signal.signal(signal.SIGCHLD, lambda *_: self.events.put(_Event("child")))
        grace = self.service.grace
        try:
            self._launch()
            status, reason = self._attend()
            if self.exit_code is not None:
                grace = min(grace, LEFTOVERS_GRACE)
            self.write(status=status, reason=reason)
        except OSError as error:
            self.write(status="failed", reason=str(error))
        finally:
            self.closing.set()
            if left := processes.end_all(self._offspring, grace):
                print(f"processes {left} survive SIGKILL", file=sys.stderr)
            self._clear_scratch()

    def _on_end_signal(self, number: int, _frame: FrameType | None) -> None:
        self.events.put(_Event("end", f"ended by {signal.Signals(number).name} to its supervisor"))

    def _clear_scratch(self) -> None:
        if self.service.scratch:
            shutil.rmtree(self.service.scratch, ignore_errors=True)

    def _launch(self) -> None:
        self.write(status="starting")
        self._clear_scratch()  # a supervisor that was killed removed nothing
        if self.service.scratch:
            Path(self.service.scratch).mkdir()
        with service_log.open_for_start(self.folder / "service.log", self.state.started, self.service.argv) as log:
            # From the main thread, and before there is another: PDEATHSIG goes by the thread that forks.
            self.process = subprocess.Popen(
                self.service.argv,
                env={**self.service.env, MARK: str(self.state.supervisor)},
                cwd=self.service.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=processes.die_with_parent,
            )
        self.write(service=ProcessId.of(self.process.pid), group=self.process.pid)
        if self.state.run is not None:
            self._watch(self.state.run)
        threading.Thread(target=self._probe, name="probe", daemon=True).start()

    def _watch(self, run: ProcessId) -> None:
        processes.watch(run, lambda: self.events.put(_Event("run", f"the run's Snakemake, process {run.pid}, is gone")))

    def _next_run(self) -> ProcessId | None:
        """Another live run that asked for the service.

        None is missed: one that `ensure` let in saw the old run alive after it had registered.
        """
        return next((run for run in registered_runs(self.folder) if run.alive()), None)

    def _attend(self) -> tuple[str, str]:
        """Wait for the service's end or a reason for it: the status and reason to write."""
        deadline = time.monotonic() + self.service.start_timeout
        while True:
            starting = self.state.status == "starting"
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()) if starting else None)
            except queue.Empty:
                wait = f"{self.service.start_timeout:g} s"
                return "failed", f"{self.service.ready_url} was not ready in {wait} ({self.last_answer})"
            self._collect()
            if event.kind == "end":
                return "ended", event.reason
            if self.exit_code is not None:
                return "failed", _exit_reason(self.exit_code)
            if event.kind == "run":
                if (run := self._next_run()) is None:
                    return "ended", event.reason
                self.write(run=run)
                self._watch(run)
            elif event.kind == "ready":
                self.write(status="ready")

    def _probe(self) -> None:
        """Ask the service whether it is ready until it is; in a thread, for an answer may take its time."""
        while not self.closing.is_set():
            status, self.last_answer = _answer(self.service.ready_url)
            if status == self.service.ready_status:
                self.events.put(_Event("ready"))
                return
            self.closing.wait(0.5)

    def _collect(self) -> bool:
        """Collect the dead among the children, adopted ones too; whether living ones are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self.process is not None and pid == self.process.pid:
                self.exit_code = self.process.returncode = os.waitstatus_to_exitcode(status)

    def _offspring(self) -> list[int]:
        """Every process that comes from this one.

        A walk over /proc can miss some while parents die; that the subreaper has no child at all is certain.
        """
        me = os.getpid()
        while self._collect():
            parents = {
                pid: next(processes.ancestors(pid), 0)
                for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
            }
            found = {me}
            while grown := {pid for pid, parent in parents.items() if parent in found} - found:
                found |= grown
            if found != {me}:
                return sorted(found - {me})
        return []


def _answer(url: str) -> tuple[int | None, str]:
    """The status that `url` answers a GET with, and in words what came of it. No proxy, no redirect is followed."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}")
        status = connection.getresponse().status
        return status, f"it answers {status}"
    except (OSError, http.client.HTTPException) as error:
        return None, f"no answer: {error}"
    finally:
        connection.close()


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"it exited with {code}"
    if -code not in set(signal.Signals):  # the real-time signals have no names
        return f"it was killed by signal {-code}"
    hint = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"it was killed by {signal.Signals(-code).name}{hint}"


def supervise(folder: Path) -> None:
    """The supervisor process, on its main thread, from start to end."""
    with ExitStack() as held:
        try:
            held.enter_context(files.file_lock(folder / "supervisor.lock", wait=False))
        except files.Locked:
            raise PlainError(f"{folder} has a supervisor already") from None
        path = folder / "service.json"
        service = Service.from_json(files.read_json(path))
        path.unlink()
        for lock in service.hold_locks:
            held.enter_context(files.file_lock(Path(lock), shared=True))
        before = read_state(folder)
        run = processes.run_process()
        state = State(
            name=service.name,
            status="starting",
            started=1 + (before.started if before is not None else 0),
            supervisor=ProcessId.here(),
            run=run if run is not None and run.on_this_host() else None,
            service=None,
            group=None,
            grace=service.grace,
            facts=service.facts,
            folder=folder_id(folder),
        )
        _Supervisor(folder, service, state).run()


if __name__ == "__main__":
    try:
        supervise(Path(sys.argv[1]))
    except PlainError as error:
        sys.exit(f"error: {error}")

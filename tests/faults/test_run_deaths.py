"""Whatever dies in the middle of a chunk, the same line goes on: nothing lost, nothing doubled, nobody left.

Each test lets the product launch a stand-in that takes its time or holds its later answers back, kills something once
answers have begun to come, and ends in the audit. What was in flight may be asked again, and nothing else.
"""

import os
import signal
from collections.abc import Callable

import pytest

from tests.standin.audit import processes_of
from tests.standin.project import Project, Result, Running
from tests.standin.waiting import until
from workflow_scripts.serving import supervisor

PROMPTS = 24
SEATS = 4  # requests in flight at most


def start(project: Project) -> Running:
    """Start the run, and return when it is in the middle of a chunk, and its answers still come."""
    run = project.start(STANDIN_FAULTS='{"delay": 0.4}')
    until(lambda: project.journaled() >= 5)
    return run


def start_and_hold(project: Project) -> Running:
    """Start the run, and return when six more answers are safe. All that are asked then are never given."""
    safe = project.journaled()
    run = project.start(STANDIN_FAULTS='{"hold_after": 6}')
    until(lambda: project.journaled() == safe + 6)
    return run


def goes_on(project: Project, lost: int = SEATS) -> Result:
    """Run the same line to its end: it asks what is not safe and no more, at most `lost` of that for a second time."""
    safe, asked = project.journaled(), len(project.requests())
    assert safe < PROMPTS, "the run was over already: nothing was tested"
    assert asked - safe <= lost
    result = project.finish()
    assert len(project.requests()) - asked == PROMPTS - safe
    assert set(project.requests()) == {f"{kind} {n}?" for kind in ("Question", "Chat") for n in range(12)}
    return result


# --- Snakemake ---


def test_snakemake_dies(prepared: Project) -> None:
    run = start_and_hold(prepared)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    prepared.no_process_left()
    goes_on(prepared)


def test_the_terminal_hangs_up(prepared: Project) -> None:
    run = start_and_hold(prepared)
    run.signal_all(signal.SIGHUP)
    run.wait()
    prepared.no_process_left()
    goes_on(prepared)


def test_snakemake_dies_and_is_started_again_at_once(prepared: Project) -> None:
    run = start_and_hold(prepared)
    os.kill(run.pid, signal.SIGKILL)
    run.process.wait()
    goes_on(prepared)


def test_snakemake_dies_twice(prepared: Project) -> None:
    for _ in range(2):
        run = start_and_hold(prepared)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    goes_on(prepared, 2 * SEATS)


TELLS: dict[str, Callable[[Running], None]] = {
    "Ctrl-C": lambda run: run.signal_all(signal.SIGINT),
    "SIGTERM": lambda run: os.kill(run.pid, signal.SIGTERM),
    "SIGTERM to all": lambda run: run.signal_all(signal.SIGTERM),
}


@pytest.mark.parametrize("how", TELLS)
def test_told_once_to_end_it_drains(prepared: Project, how: str) -> None:
    run = start(prepared)
    TELLS[how](run)
    result = run.wait()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert "stopping; answers in flight have 10 s. Once more to stop at once" in result.output
    assert result.lines("Not finished. What is done is safe: the same line again goes on from here, once")
    prepared.no_process_left()
    goes_on(prepared, 0)


@pytest.mark.parametrize("how", TELLS)
def test_told_twice_to_end_it_ends_at_once(prepared: Project, how: str) -> None:
    prepared.config["servers"]["drain"] = 600
    run = prepared.start(STANDIN_FAULTS='{"hold_after": 0}')
    until(lambda: len(prepared.requests()) == SEATS)
    TELLS[how](run)
    # Both chunks' jobs: of two signals that come before the first is met, a process sees one.
    until(lambda: run.output.count("stopping; answers in flight have 600 s") == 2)
    TELLS[how](run)
    result = run.wait()
    assert result.code != 0, result.output
    prepared.no_process_left()
    assert prepared.journaled() == 0
    goes_on(prepared)


# --- what it started ---


def pid_of_job(project: Project) -> int:
    """The job that answers the first chunk."""
    return next(
        pid
        for pid, argv in sorted(processes_of(project.folder).items())
        if "workflow_scripts.completions" in argv and "bash" not in argv
    )


def state_of(project: Project) -> supervisor.State:
    state = supervisor.read_state(project.made.server(0))
    assert state is not None
    return state


def pid_of_supervisor(project: Project) -> int:
    return state_of(project).supervisor.pid


def pid_of_server(project: Project) -> int:
    service = state_of(project).service
    assert service is not None
    return service.pid


def pid_of_scheduler(project: Project) -> int:
    (pid,) = [
        pid
        for pid, argv in processes_of(project.folder).items()
        if "tests.standin.server" in argv and pid != pid_of_server(project)
    ]
    return pid


VICTIMS: dict[str, Callable[[Project], int]] = {
    "job": pid_of_job,
    "supervisor": pid_of_supervisor,
    "server": pid_of_server,
    "scheduler": pid_of_scheduler,
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_run_goes_on_by_itself(prepared: Project, victim: str) -> None:
    run = start(prepared)
    safe = prepared.journaled()
    os.kill(VICTIMS[victim](prepared), signal.SIGKILL)
    result = run.wait()
    assert result.code == 0, result.output
    assert safe < PROMPTS
    prepared.audit()
    assert PROMPTS <= len(prepared.requests()) <= PROMPTS + SEATS
    assert prepared.server_starts() == (1 if victim == "job" else 2)


@pytest.mark.parametrize("victim", ["job", "supervisor"])
def test_snakemake_dies_with_another(prepared: Project, victim: str) -> None:
    run = start_and_hold(prepared)
    os.kill(VICTIMS[victim](prepared), signal.SIGKILL)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    goes_on(prepared, 2 * SEATS)  # Snakemake may have started the job again, before it was killed itself

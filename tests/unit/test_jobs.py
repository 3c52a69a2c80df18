"""What a job says when it fails, and how it ends with its run."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workflow_scripts import jobs, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId


def fail_with(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PlainError("what, where, what to do"), "error: what, where, what to do"),
        (OSError(28, "No space left on device", "results/x"), "error: results/x: No space left on device; make room"),
        (OSError(30, "Read-only file system", "results"), "error: results: Read-only file system; make it writable"),
    ],
)
def test_a_users_or_the_machines_fault_is_one_plain_line(error: Exception, says: str) -> None:
    with pytest.raises(SystemExit) as caught:
        jobs.run_job(lambda: fail_with(error))
    assert str(caught.value.code).startswith(says)


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ConnectionResetError):
        jobs.run_job(lambda: fail_with(ConnectionResetError(104, "reset")))


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """Like `| head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "workflow_scripts.sources.catalogue"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_terminal_hides_no_error() -> None:
    command = [sys.executable, "-m", "workflow_scripts.sources.catalogue"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: No space left on device")


def test_a_job_dies_with_its_run(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    named = ProcessId.of(run.pid)
    code = "import time; from workflow_scripts.jobs import run_job; run_job(lambda: time.sleep(60))"
    job = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {processes.RUN_PROCESS_VARIABLE: str(named), "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert job.poll() is None
        run.kill()
        run.wait()
        assert job.wait(30) == 1
    finally:
        job.kill()
        job.wait()


def test_times_are_kept_of_what_succeeded(tmp_path: Path) -> None:
    with jobs.timed(tmp_path, "sources"):
        pass
    with pytest.raises(PlainError), jobs.timed(tmp_path, "prompts"):
        raise PlainError("no")
    assert (tmp_path / "timings.jsonl").read_text().count('"stage":"sources"') == 1
    assert "prompts" not in (tmp_path / "timings.jsonl").read_text()


def test_of_jobs_that_start_at_once_one_a_processor_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    inside: list[int] = []
    most: list[int] = []

    def job(number: int) -> None:
        with jobs.starting(tmp_path / "servers"):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.02)
            inside.remove(number)

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(job, range(5)))
    assert most == [1] * 5

"""What the next start finds, whatever happened before: processes, marks of Snakemake, wrong dates, a backup."""

import base64
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.faults.test_run_deaths import pid_of_scheduler, pid_of_supervisor, start_and_hold
from tests.standin.audit import processes_of
from tests.standin.project import Project
from tests.standin.waiting import until

NOTHING = "Nothing to be done"


# --- processes ---


def test_a_server_that_outlived_all_is_ended_even_if_nothing_is_to_be_done(prepared: Project) -> None:
    """Its supervisor was killed when no job lived any more, so nobody was left to end the rest."""
    run = prepared.start(STANDIN_FAULTS='{"delay": 0.3}')
    until(lambda: prepared.journaled() >= 1)
    scheduler = pid_of_scheduler(prepared)
    supervisor = pid_of_supervisor(prepared)
    os.kill(run.pid, signal.SIGSTOP)  # no next chunk, and nobody who would notice
    until(
        lambda: (
            not [pid for pid, argv in processes_of(prepared.folder).items() if "workflow_scripts.completions" in argv]
        )
    )
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: supervisor not in processes_of(prepared.folder))
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert set(processes_of(prepared.folder)) == {scheduler}

    planned = prepared.run("-n")
    assert planned.code == 0 and set(processes_of(prepared.folder)) == {scheduler}
    prepared.config["name"] = "another"  # any run in this results folder
    result = prepared.run("prompts")
    assert result.code == 0 and result.lines("ended 1 processes that an earlier run had left"), result.output
    assert processes_of(prepared.folder) == {}


# --- Snakemake's marks ---


def mark_incomplete(project: Project, path: Path) -> None:
    """As Snakemake does while a job runs; a kill between the job's end and its own note leaves the mark."""
    marks = project.folder / ".snakemake" / "incomplete"
    marks.mkdir(exist_ok=True)
    name = base64.b64encode(str(path.relative_to(project.folder)).encode()).decode()
    (marks / name).write_text("")


@pytest.mark.parametrize("stamp", ["setup/environment.json", "setup/model.json", "prompts/split.json"])
def test_a_finished_file_that_passes_for_cut_short_hides_no_chunk(prepared: Project, stamp: str) -> None:
    mark_incomplete(prepared, prepared.made.folder / stamp)
    result = prepared.finish()
    assert [job for job in result.jobs if job.startswith("Chunk 0")] != []


def test_a_part_that_snakemake_takes_for_all_is_told(prepared: Project) -> None:
    """Without our profile: Snakemake plans nothing of what takes, as ancient(), a file that is made again."""
    mark_incomplete(prepared, prepared.made.folder / "setup" / "environment.json")
    refused = prepared.run(profile="none")
    assert refused.code != 0 and "--rerun-incomplete" in refused.output
    part = prepared.run("--rerun-incomplete", profile="none")
    assert part.jobs == ["The servers' environment"]
    says = "error: Snakemake planned a part only. Not finished. What is done is safe: the same line again"
    assert part.code != 0 and part.lines(says) and "Traceback" not in part.output, part.output
    assert prepared.run("--rerun-incomplete", profile="none").code == 0
    prepared.audit()


def test_after_a_crash_without_our_profile(prepared: Project) -> None:
    prepared.start(profile="none").wait()
    prepared.forget_answers()
    run = prepared.start(profile="none", STANDIN_FAULTS='{"hold_after": 6}')
    until(lambda: prepared.journaled() == 6)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    prepared.no_process_left()
    assert "--unlock" in prepared.run(profile="none").output
    result = prepared.run("--nolock", "--rerun-incomplete", profile="none")  # as the README says
    assert result.code == 0, result.output
    prepared.audit()


# --- dates ---


def test_a_clock_that_was_set_back_loses_nothing(prepared: Project) -> None:
    start_and_stop(prepared)
    ahead = time.time() + 3600
    for path in prepared.made.folder.rglob("*.*"):
        os.utime(path, (ahead, ahead))
    result = prepared.finish()
    assert result.lines("clock: ") and "files of the run were dated in the future" in result.output, result.output
    assert len(prepared.requests()) <= 24 + 4
    assert NOTHING in prepared.run().output


def start_and_stop(project: Project) -> None:
    """A crash in the middle of a chunk."""
    run = start_and_hold(project)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    project.no_process_left()


def shuffle_dates(folder: Path, seed: int) -> None:
    """As a copy leaves them that does not keep dates."""
    chance, now = random.Random(seed), time.time()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            date = now - chance.uniform(0, 100)
            os.utime(path, (date, date))


@pytest.mark.parametrize("seed", range(3))
def test_a_finished_run_restored_from_a_backup_answers_nothing_again(finished: Project, seed: int) -> None:
    shutil.copytree(finished.results, finished.folder / "backup", symlinks=True)
    shutil.rmtree(finished.results)
    shutil.rmtree(finished.folder / ".snakemake")
    shuffle_dates(finished.folder / "backup", seed)
    (finished.folder / "backup").rename(finished.results)
    completions = finished.tree(finished.made.folder / "completions")
    result = finished.finish()
    assert [job for job in result.jobs if job.startswith("Chunk 0")] == []
    assert len(finished.requests()) == 24
    assert finished.tree(finished.made.folder / "completions") == completions


def test_a_copy_made_while_the_run_lives_stands_alone(prepared: Project) -> None:
    run = start_and_hold(prepared)
    copied = prepared.copy(prepared.folder.with_name("copy"))
    safe, asked = copied.journaled(), len(copied.requests())
    try:
        result = copied.start().wait(60)  # the original's server would never answer
        assert result.code == 0, result.output
        copied.audit()
    finally:
        copied.end_processes()
    assert len(copied.requests()) - asked == 24 - safe
    assert run.process.poll() is None
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    prepared.finish()


@pytest.mark.parametrize("seed", range(3))
def test_half_a_run_restored_from_a_backup_goes_on(prepared: Project, seed: int) -> None:
    start_and_stop(prepared)
    safe = prepared.journaled()
    shutil.rmtree(prepared.folder / ".snakemake")
    shuffle_dates(prepared.results, seed)
    asked = len(prepared.requests())
    prepared.finish()
    assert len(prepared.requests()) - asked == 24 - safe


# --- suspended ---


def test_jobs_that_are_suspended_do_not_outlive_snakemake(prepared: Project) -> None:
    run = start_and_hold(prepared)
    run.signal_all(signal.SIGSTOP)
    os.kill(run.pid, signal.SIGKILL)
    run.process.wait()
    prepared.no_process_left()
    prepared.finish()


def test_told_to_end_before_the_first_job(fresh: Project) -> None:
    run = fresh.start()
    until(lambda: "run small-" in run.output)
    run.signal_all(signal.SIGINT)
    result = run.wait()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    fresh.no_process_left()
    fresh.finish()


# --- files that are gone or cut ---

ENDS = ["manifest.parquet", "manifest.json", "summary.json", "training/*/train-00000.parquet"]


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("cut", [False, True], ids=["gone", "cut"])
def test_what_a_run_ends_with_is_made_again(finished: Project, name: str, cut: bool) -> None:
    (path,) = finished.made.folder.glob(name)
    before = path.read_bytes()
    if cut:
        path.write_bytes(b"")
    else:
        path.unlink()
    result = finished.run()
    if cut and name.startswith("manifest"):  # it decides what the chunks hold: nothing is done about it unasked
        assert result.code != 0 and "Traceback" not in result.output, result.output
        assert path.name in result.output and "delete it and run the same line again" in result.output
        path.unlink()
        result = finished.run()
    assert result.code == 0, result.output
    if name != "summary.json":  # which has times in it
        assert path.read_bytes() == before
    finished.audit()
    assert len(finished.requests()) == 24


@pytest.mark.parametrize("name", ["completions/00001.json", "training/*/training.json", "manifest.json", "lock.json"])
def test_a_json_file_that_holds_nothing_is_told(finished: Project, name: str) -> None:
    (path,) = finished.made.folder.glob(name)
    path.write_text("{}")
    finished.made.summary.unlink()
    result = finished.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    says = f"{path.relative_to(finished.folder)} does not hold what it should; delete it and run the same line again"
    assert says in result.output


def test_a_folder_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "a [1] * ?")
    project.finish()

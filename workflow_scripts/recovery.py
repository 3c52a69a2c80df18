"""What a start finds of runs that died before it: processes, half-written files, dates from a clock that was wrong."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from workflow_scripts import files
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor

STEP_SECONDS = 1.0  # a clock that is set back by less harms nothing: no job is that short


def end_orphans(results: Path) -> list[int]:
    """End what services outlived their supervisors, of any run in the results folder; the pids that were found.

    That can happen only where the supervisor and all jobs of its run were killed at once.
    """
    states = [*results.glob("*/servers/*/state.json"), *results.glob(".store/state.json")]
    mine = [state for state in states if os.access(state, os.R_OK)]  # another user's are his to end
    return [pid for state in mine for pid in supervisor.reap(state.parent)]


def sweep(run: Run) -> None:
    """Remove what writers that were killed left of half-written files, but for what somebody writes now."""
    for tmp in run.folder.rglob(".*.tmp"):
        _remove_if_free(tmp, tmp)
    for tmp in (run.results / "sources").glob(".*.tmp"):
        _remove_if_free(tmp, tmp.with_suffix(".lock"))


def _remove_if_free(tmp: Path, lock: Path) -> None:
    try:
        with files.file_lock(lock, wait=False):
            if tmp.is_dir():
                shutil.rmtree(tmp)
            else:
                tmp.unlink(missing_ok=True)
    except files.Locked:
        pass


def declared_files(run: Run) -> Iterable[Path]:
    """The files whose dates Snakemake compares: what rules of this run take as input."""
    yield from run.folder.glob("*.*")
    yield from run.folder.glob("setup/*.json")
    yield from run.folder.glob("sources/*.json")
    yield from run.folder.glob("prompts/split.json")
    yield from run.folder.glob("completions/*")
    yield from run.folder.glob("training/*/training.json")
    yield from run.folder.glob("published/*/*.json")


def redate(run: Run, now: int) -> int:
    """Give files that are dated after `now` (nanoseconds, by the file system's clock) that date; return how many.

    Snakemake removes what a job made where an input is newer: after a clock was set back that is every file, paid
    for or not, until the clock has caught up.
    """
    count = 0
    for path in declared_files(run):
        try:
            stat = path.stat()
            if stat.st_mtime_ns > now:
                os.utime(path, ns=(stat.st_atime_ns, now))
                count += 1
        except FileNotFoundError:  # replaced meanwhile
            pass
    return count


def file_system_now(run: Run) -> int:
    """The date, in nanoseconds, of a file that is written now: a file server has a clock of its own."""
    path = run.folder / ".clock"
    path.touch()
    now = path.stat().st_mtime_ns
    path.unlink()
    return now


def on_clock_set_back(act: Callable[[], object], wall: Callable[[], float] = time.time, every: float = 1.0) -> None:
    """Call `act`, in a thread that lives as long as this process, each time that the wall clock is set back."""

    def look() -> None:
        offset = wall() - time.monotonic()
        while True:
            time.sleep(every)
            now = wall() - time.monotonic()
            if now < offset - STEP_SECONDS:
                act()
            offset = now

    threading.Thread(target=look, name="clock", daemon=True).start()

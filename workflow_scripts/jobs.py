"""What every job does around its work: die with its run, speak plainly, leave its times."""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from workflow_scripts import processes
from workflow_scripts.errors import PlainError, plain_os_errors


def run_job(main: Callable[[], None]) -> None:
    """Run a job's `main` and exit: 0, or 1 with one plain line, or a traceback if the fault is ours.

    Under a run the process ends at once when the run's Snakemake is dead: files are published atomically and
    journals append only, so there is nothing to tidy.
    """
    run = processes.run_process()
    if run is not None and run.on_this_host():
        if run.pid == os.getppid():  # a suspended job has no thread that could watch, but the kernel ends it
            processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
        processes.watch(run, lambda: os._exit(1))
    try:
        with plain_os_errors():
            main()
            sys.stdout.flush()
    except BrokenPipeError:
        if run is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has seen enough
    except PlainError as error:
        if isinstance(error.__cause__, OSError):
            with suppress(OSError):
                say(f"error: {error}")  # a full disk holds no log
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def say(text: str) -> None:
    """One line of progress for the person at the terminal."""
    print(text, flush=True)


@contextmanager
def starting(folder: Path) -> Iterator[None]:
    """Hold this while a job imports what takes long: of many that start at once, only as many do as have a processor.

    Else all of them share the processors, and the first is ready when the last is. `folder` is for the locks.
    """
    folder.mkdir(exist_ok=True)
    with (folder / f"starting.{os.getpid() % len(os.sched_getaffinity(0))}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def timed(run_folder: Path, stage: str) -> Iterator[dict[str, int]]:
    """Append `{stage, start, end}` (Unix seconds) to the run's timings.jsonl, with what the block adds: {tokens: made}.

    The summary's seconds by stage and tokens per second are made of it.
    """
    start = time.time()
    more: dict[str, int] = {}
    yield more
    line = orjson.dumps({"stage": stage, "start": start, "end": time.time()} | more, option=orjson.OPT_APPEND_NEWLINE)
    with (run_folder / "timings.jsonl").open("ab") as file:  # one write below PIPE_BUF: lines of several jobs don't mix
        file.write(line)

"""Batches converted by processes of our own, in order. Run as a module, this is one of them.

A worker reads pickled batches from its stdin and writes what they gave to its stdout, one for one. The kernel kills it
with the process that started it.
"""

import fcntl
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from workflow_scripts import processes
from workflow_scripts.errors import PlainError
from workflow_scripts.sources.conversion import Conversion, Converted
from workflow_scripts.sources.readers import Batch

ROOT = Path(__file__).parents[2]
PIPE_BYTES = 1 << 20  # what Linux allows to all
THREADS = 4  # with more, the one process that reads and writes would be the slower part
WORTH_BYTES = 64 << 20  # smaller sources are read before workers have started


def threads(locked: dict[str, Any] | None) -> int:
    """The threads that the job of a source asks for, by what is known of its files when the run is planned."""
    listed = locked["files"] if locked is not None else []
    if listed and sum(file["bytes"] for file in listed) < WORTH_BYTES:
        return 1
    return THREADS  # of a dataset of the hub nothing is known then


class _Worker:
    """One process, and the pipes to it. It holds one batch at a time."""

    def __init__(self, conversion: Conversion) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=processes.die_with_parent,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.send(conversion)

    def send(self, value: Any) -> None:
        try:
            pickle.dump(value, self._in, pickle.HIGHEST_PROTOCOL)
            self._in.flush()
        except BrokenPipeError as error:
            raise self._lost() from error

    def receive(self) -> Converted:
        try:
            made: Converted = pickle.load(self._out)
        except (EOFError, pickle.UnpicklingError) as error:  # nothing, or a part
            raise self._lost() from error
        return made

    def _lost(self) -> PlainError:
        return PlainError(
            f"a process that converts rows ended (exit code {self._process.wait()}; -9 is a kill, mostly for want of "
            f"memory). Run the same line again"
        )

    def end(self) -> None:
        self._process.kill()  # it holds nothing that could be lost
        self._process.wait()
        self._out.close()
        try:
            self._in.close()
        except BrokenPipeError:  # of a batch that it will not read
            pass


def convert(batches: Iterator[Batch], conversion: Conversion, count: int) -> Generator[Converted, None, None]:
    """What each batch gives, in order, by `count` processes, each of which has its next batch waiting."""
    idle: SimpleQueue[_Worker] = SimpleQueue()
    workers: list[_Worker] = []

    def converted(batch: Batch) -> Converted:
        worker = idle.get()
        try:
            worker.send(batch)
            return worker.receive()
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(count)
    try:
        for _ in range(count):
            workers.append(_Worker(conversion))
            idle.put(workers[-1])
        asked: deque[Future[Converted]] = deque()
        for batch in batches:
            asked.append(threads.submit(converted, batch))
            if len(asked) == 2 * count:
                yield asked.popleft().result()
        while asked:
            yield asked.popleft().result()
    finally:
        for worker in workers:
            worker.end()
        threads.shutdown(cancel_futures=True)


def serve() -> None:
    """The worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; who started this ends it
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    conversion: Conversion = pickle.load(source)
    while True:
        try:
            batch: Batch = pickle.load(source)
        except EOFError:
            return
        pickle.dump(conversion.convert(batch.parse(), batch.seen), sink, pickle.HIGHEST_PROTOCOL)
        sink.flush()


if __name__ == "__main__":
    serve()

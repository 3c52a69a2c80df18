"""A job's right to use one of the servers. Several jobs share a server; the oldest is the front.

    SERVERS/leases.lock          held for the moment of a choice
    SERVERS/K/lease.I.lock       lease I of server K, flocked by its holder: the kernel drops it at any death
    SERVERS/K/seats              shared memory of the jobs on server K: int64 in the machine's byte order
    SERVERS/alone.lock           held by the one job of the run that has a server to itself

The seats file is a table of rows of five numbers. Row 0 holds the last ticket given out, the file's own inode (in a
copy of the folder the table is another server's, and begins anew), and the ticket of the holder that has the server
to itself (0: none). Row I + 1 belongs to the holder of lease I: its ticket (0: nobody's), the seats it could still
use, its pid, its start time, and its requests in flight. The row of a holder that was killed stays until the next
holder overwrites it; its pid and start time tell that it is stale.

A job may use the seats that holders of older tickets do not want: the front has all that it wants, the others fill
what its last requests leave free. Wants that only fall keep the sum of used seats within the server's.
"""

import mmap
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.processes import ProcessId

TICKET, WANTED, PID, START, FLYING = range(5)
INODE, ALONE = 1, 2  # in row 0
ROW = 5
ALL = 1 << 62  # wanted by a job that has not said yet how much it wants
POLL_SECONDS = 0.2
SAY_AFTER_SECONDS = 5.0
CHECK_SECONDS = 1.0  # how often the older holders are looked at


class Lease:
    """The right to use server `server`, until `release`. Use it as a context manager, from one thread."""

    def __init__(self, folder: Path, server: int, slot: int, slots: int, lock: ExitStack) -> None:
        """For `acquire`, which holds leases.lock: `lock` holds the flock of lease `slot` of `slots`."""
        self.folder = folder
        self.server = server
        self.slot = slot
        self._lock = lock
        self._me = ProcessId.here()
        self._seats, self._table = _open_seats(folder, slots)
        self._dead: set[int] = set()  # tickets of other holders that are dead
        self._checked = 0.0
        self.ticket = self._table[TICKET] + 1
        self._table[TICKET] = self.ticket
        row = (slot + 1) * ROW
        self._table[row + TICKET] = 0  # the row is nobody's while it changes
        self._table[row + WANTED] = ALL
        self._table[row + PID] = self._me.pid
        self._table[row + START] = self._me.start
        self._table[row + FLYING] = 0
        self._table[row + TICKET] = self.ticket

    def want(self, seats: int) -> None:
        """Say how many seats this job could still use. Until the first call it wants all."""
        self._table[(self.slot + 1) * ROW + WANTED] = max(0, seats)

    def allowance(self, seats: int) -> int:
        """How many of the server's `seats` this job may use now."""
        others = self._others()
        alone = self._table[ALONE]
        if alone != self.ticket and any(self._table[row + TICKET] == alone for row in others):
            return 0
        older = [row for row in others if self._table[row + TICKET] < self.ticket]
        return max(0, seats - sum(self._table[row + WANTED] for row in older))

    def flying(self, requests: int) -> None:
        """Say how many requests of this job are in flight."""
        self._table[(self.slot + 1) * ROW + FLYING] = requests

    def others_flying(self) -> int:
        """The requests that other jobs have in flight on this server."""
        return sum(self._table[row + FLYING] for row in self._others())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the server to oneself: no other job sends to it in the block, but what is in flight goes on.

        One job of the run at a time: files.Locked if another has its server so.
        """
        with files.file_lock(self.folder.parent / "alone.lock", wait=False):
            self._table[ALONE] = self.ticket
            try:
                yield
            finally:
                self._table[ALONE] = 0

    def _others(self) -> list[int]:
        """The rows of the other live holders."""
        tickets = (0, self.ticket)
        rows = [row for row in range(ROW, len(self._table), ROW) if self._table[row + TICKET] not in tickets]
        if rows and time.monotonic() - self._checked >= CHECK_SECONDS:
            self._checked = time.monotonic()
            self._dead = {self._table[row + TICKET] for row in rows if not self._holder(row).alive()}
        return [row for row in rows if self._table[row + TICKET] not in self._dead]

    def _holder(self, row: int) -> ProcessId:
        return replace(self._me, pid=self._table[row + PID], start=self._table[row + START])

    def release(self) -> None:
        """Give the lease back. Twice is once."""
        if self._seats.closed:
            return
        self._table[(self.slot + 1) * ROW + TICKET] = 0
        self._table.release()
        self._seats.close()
        self._lock.close()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def acquire(
    servers: Path,
    count: int,
    leases: int,
    timeout: float | None = None,
    usable: Callable[[], Collection[int]] | None = None,
) -> Lease:
    """Lease the server, of `count` in folder `servers`, that has the fewest of its `leases` taken.

    `usable` says which of them may be used now (None: all); it raises if that is none. Waits while all are taken;
    PlainError after `timeout` seconds (None: never).
    """
    start = time.monotonic()
    said = False
    while True:
        with files.file_lock(servers / "leases.lock"):
            lease = _take(servers, range(count) if usable is None else usable(), leases)
        if lease is not None:
            return lease
        waited = time.monotonic() - start
        if timeout is not None and waited >= timeout:
            raise PlainError(
                f"no server came free in {timeout:g} s: all {count * leases} leases in {servers} are taken. "
                f"If no other run uses them, jobs of an earlier one are still alive: end those"
            )
        if not said and waited >= SAY_AFTER_SECONDS:
            say(f"waiting for a server: all {count * leases} leases are taken, some perhaps by an earlier run's jobs")
            said = True
        time.sleep(POLL_SECONDS)


def held_alone(folder: Path) -> bool:
    """Whether a live job has the server of this folder to itself."""
    path = folder / "seats"
    if not path.exists():
        return False
    table = memoryview(path.read_bytes()).cast("q")
    here = ProcessId.here()
    return table[ALONE] != 0 and any(
        table[row + TICKET] == table[ALONE] and replace(here, pid=table[row + PID], start=table[row + START]).alive()
        for row in range(ROW, len(table), ROW)
    )


def _take(servers: Path, usable: Collection[int], leases: int) -> Lease | None:
    """The free lease that spreads jobs best, if any is free. The caller holds leases.lock."""
    with ExitStack() as probes:
        free: dict[int, dict[int, ExitStack]] = {}
        for server in usable:
            free[server] = {}
            for slot in range(leases):
                lock = probes.enter_context(ExitStack())
                try:
                    lock.enter_context(files.file_lock(servers / str(server) / f"lease.{slot}.lock", wait=False))
                except files.Locked:
                    continue
                free[server][slot] = lock
        server = max(free, key=lambda number: len(free[number]))  # the first of equals
        if not free[server]:
            return None
        slot, lock = next(iter(free[server].items()))
        return Lease(servers / str(server), server, slot, leases, lock.pop_all())


def _open_seats(folder: Path, slots: int) -> tuple[mmap.mmap, "memoryview[int]"]:
    """The server's table, with room for `slots` leases at least. It never shrinks: others have it mapped."""
    with (folder / "seats").open("a+b") as file:
        size = max(file.seek(0, 2), (slots + 1) * ROW * 8)
        os.posix_fallocate(file.fileno(), 0, size)  # a hole in it would be a SIGBUS on a full disk
        seats = mmap.mmap(file.fileno(), size)
        inode = os.fstat(file.fileno()).st_ino & (1 << 63) - 1
    table = memoryview(seats).cast("q")  # aligned 8-byte stores: no reader sees half a number
    if table[INODE] != inode:
        seats[:] = bytes(size)
        table[INODE] = inode
    return seats, table

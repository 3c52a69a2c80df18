import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_scripts.errors import PlainError
from workflow_scripts.processes import ProcessId, wait_for_death
from workflow_scripts.serving import leases
from workflow_scripts.serving.leases import Lease, acquire

PROJECT = Path(leases.__file__).parents[2]

# Takes a lease, says which and how many seats it wants, and holds it until its stdin closes; then prints its allowance.
HOLDER = """
import sys
from pathlib import Path
from workflow_scripts.serving.leases import acquire
with acquire(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])) as lease:
    if sys.argv[4] != "all":
        lease.want(int(sys.argv[4]))
    print(lease.server, lease.slot, lease.ticket, flush=True)
    sys.stdin.read()
    print(lease.allowance(100), flush=True)
"""


class Holder:
    """Another process that holds a lease."""

    def __init__(self, servers: Path, count: int, leases: int, want: str = "all") -> None:
        argv = [sys.executable, "-c", HOLDER, str(servers), str(count), str(leases), want]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT, encoding="utf-8"
        )

    def taken(self) -> tuple[int, int, int]:
        """Server, slot and ticket, once it has them."""
        assert self.process.stdout is not None
        server, slot, ticket = map(int, self.process.stdout.readline().split())
        return server, slot, ticket

    def finish(self) -> int:
        """Let it release its lease; the allowance of 100 seats that it had before."""
        said, _ = self.process.communicate(timeout=60)
        return int(said)

    def kill(self) -> None:
        identity = ProcessId.of(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        assert identity is None or wait_for_death(identity, 60)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def hold(stack: ExitStack, servers: Path, count: int, leases: int, want: str = "all") -> Holder:
    holder = Holder(servers, count, leases, want)
    stack.callback(holder.process.communicate)
    stack.callback(holder.process.kill)
    return holder


def test_leases_spread_over_the_servers(tmp_path: Path, stack: ExitStack) -> None:
    taken = [stack.enter_context(acquire(tmp_path, 3, 2)) for _ in range(6)]
    assert [lease.server for lease in taken] == [0, 1, 2, 0, 1, 2]
    assert [lease.ticket for lease in taken] == [1, 1, 1, 2, 2, 2]
    assert [lease.folder for lease in taken[:3]] == [tmp_path / "0", tmp_path / "1", tmp_path / "2"]
    taken[4].release()
    again = stack.enter_context(acquire(tmp_path, 3, 2))
    assert (again.server, again.slot, again.ticket) == (1, 1, 3)


def test_processes_that_start_at_once_spread_evenly(tmp_path: Path, stack: ExitStack) -> None:
    holders = [hold(stack, tmp_path, 3, 4) for _ in range(9)]
    taken = [holder.taken() for holder in holders]
    assert sorted(server for server, _, _ in taken) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({(server, slot) for server, slot, _ in taken}) == 9
    assert sorted(ticket for _, _, ticket in taken) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_the_oldest_is_the_front(tmp_path: Path, stack: ExitStack) -> None:
    first, second, third = (stack.enter_context(acquire(tmp_path, 1, 3)) for _ in range(3))
    assert [lease.allowance(8) for lease in (first, second, third)] == [8, 0, 0]  # nobody has said what it wants
    first.want(8)
    second.want(8)
    assert [lease.allowance(8) for lease in (first, second, third)] == [8, 0, 0]
    first.want(5)
    assert [lease.allowance(8) for lease in (first, second, third)] == [8, 3, 0]
    second.want(1)
    assert [lease.allowance(8) for lease in (first, second, third)] == [8, 3, 2]
    first.release()
    assert [lease.allowance(8) for lease in (second, third)] == [8, 7]
    newest = stack.enter_context(acquire(tmp_path, 1, 3))
    third.want(2)
    assert newest.slot == first.slot and newest.ticket == 4
    assert [lease.allowance(8) for lease in (second, third, newest)] == [8, 7, 5]


def test_wants_pass_between_processes(tmp_path: Path, stack: ExitStack) -> None:
    with acquire(tmp_path, 1, 2) as front:
        front.want(70)
        other = hold(stack, tmp_path, 1, 2)
        assert other.taken() == (0, 1, 2)
        assert other.finish() == 30


def test_a_killed_holder_blocks_neither_seats_nor_leases(tmp_path: Path, stack: ExitStack) -> None:
    other = hold(stack, tmp_path, 1, 2, "60")
    assert other.taken() == (0, 0, 1)
    with acquire(tmp_path, 1, 2) as lease:
        assert lease.allowance(100) == 40
        other.kill()
        lease._checked = 0.0  # the next look is due
        assert lease.allowance(100) == 100
        with acquire(tmp_path, 1, 2) as next_lease:
            assert (next_lease.slot, next_lease.ticket) == (0, 3)
            lease.want(10)
            assert next_lease.allowance(100) == 90
            assert lease.allowance(100) == 100


def test_the_older_are_not_looked_at_in_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with acquire(tmp_path, 1, 2), acquire(tmp_path, 1, 2) as lease:
        lease.allowance(1)
        now = lease._checked
        looks: list[int] = []
        holder = lease._holder

        def counted(row: int) -> ProcessId:
            looks.append(row)
            return holder(row)

        monkeypatch.setattr(lease, "_holder", counted)
        monkeypatch.setattr("time.monotonic", lambda: now + 0.9)
        lease.allowance(1)
        assert looks == []
        monkeypatch.setattr("time.monotonic", lambda: now + 1.1)
        lease.allowance(1)
        assert len(looks) == 1


def test_waits_for_a_lease_and_says_so(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leases, "SAY_AFTER_SECONDS", 0.0)
    other = hold(stack, tmp_path, 2, 1)
    other.taken()
    with acquire(tmp_path, 2, 1):
        with pytest.raises(PlainError, match=r"no server came free in 0.5 s: all 2 leases in .* are taken"):
            acquire(tmp_path, 2, 1, timeout=0.5)
        assert capsys.readouterr().out.count("waiting for a server: all 2 leases are taken") == 1
        monkeypatch.setattr("time.sleep", lambda _: other.kill())
        with acquire(tmp_path, 2, 1, timeout=60) as lease:
            assert lease.server == 0


def test_release_twice_frees_no_other_lease(tmp_path: Path) -> None:
    first = acquire(tmp_path, 1, 1)
    first.release()
    with acquire(tmp_path, 1, 1) as second:
        first.release()
        assert second.allowance(3) == 3
        with pytest.raises(PlainError):
            acquire(tmp_path, 1, 1, timeout=0)


def test_in_a_copy_of_the_folder_the_holders_are_anothers(tmp_path: Path, stack: ExitStack) -> None:
    holders = [stack.enter_context(acquire(tmp_path / "servers", 1, 3)) for _ in range(3)]
    shutil.copytree(tmp_path / "servers", tmp_path / "copy")
    lease = stack.enter_context(acquire(tmp_path / "copy", 1, 1))
    assert (lease.ticket, lease.allowance(8)) == (1, 8)
    assert [holder.allowance(8) for holder in holders] == [8, 0, 0]


def test_more_leases_than_the_file_was_made_for(tmp_path: Path, stack: ExitStack) -> None:
    few = stack.enter_context(acquire(tmp_path, 1, 1))
    few.want(3)
    assert (tmp_path / "0" / "seats").stat().st_size == 80
    more = [stack.enter_context(acquire(tmp_path, 1, 4)) for _ in range(3)]
    assert (tmp_path / "0" / "seats").stat().st_size == 200
    assert [lease.allowance(5) for lease in [few, *more]] == [5, 2, 0, 0]


@settings(max_examples=60)
@given(data=st.data(), seats=st.integers(2, 8))
def test_used_seats_never_exceed_the_server(
    data: st.DataObject, seats: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Jobs come, take what they may, finish prompts and leave, in any order: the sum stays within the seats."""
    servers = tmp_path_factory.mktemp("servers")
    left: dict[Lease, int] = {}  # prompts without an answer, those in flight too
    used: dict[Lease, int] = {}
    with ExitStack() as stack:
        steps = st.lists(st.sampled_from(["come", "come", "send", "send", "send", "finish", "leave"]), min_size=15)
        for step in data.draw(steps, "steps"):
            if step == "come" and len(left) < 4:
                lease = stack.enter_context(acquire(servers, 1, 4))
                left[lease], used[lease] = data.draw(st.integers(0, seats + 3), "prompts"), 0
                if data.draw(st.booleans(), "says its want at once"):
                    lease.want(min(left[lease], seats))
            elif left:
                lease = data.draw(st.sampled_from(list(left)), "job")
                if step == "finish" and used[lease]:
                    used[lease] -= 1
                    left[lease] -= 1
                    lease.want(min(left[lease], seats))
                elif step == "leave" and not used[lease]:
                    lease.release()
                    del left[lease], used[lease]
                elif step == "send":
                    lease.want(min(left[lease], seats))
                    used[lease] = max(used[lease], min(left[lease], lease.allowance(seats)))
            assert sum(used.values()) <= seats
        if left:  # and the front is never kept from its own
            front = min(left, key=lambda lease: lease.ticket)
            assert front.allowance(seats) == seats

"""Files of datasets, fetched from a hub on this machine: whole, once, and on from where a death cut them off."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest

from tests.integration.from_hub import DATA, SMALL, fetch, left_in, message, paths, resolve
from tests.standin.hub import Hub
from tests.standin.running import ROOT
from tests.standin.waiting import until
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import transfer
from workflow_scripts.sources.hub import Resolved, Unavailable


class TestDownloads:
    def test_large_and_small_files(self, served: Hub, tmp_path: Path) -> None:
        served.commit("o/d", {"a/train.jsonl": DATA, "b/train.jsonl": SMALL})
        resolved = resolve(files=["**"])
        assert [fetch(resolved, path).read_bytes() for path in paths(resolved)] == [DATA, SMALL]
        assert [fetch(resolved, path).name for path in paths(resolved)] == ["train.jsonl"] * 2
        assert len(served.asked("/resolve/")) == 2  # and none for what is there
        assert left_in(tmp_path / "home") == ["train.jsonl"] * 2

    def test_an_empty_file(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": b""})
        assert fetch(resolve()).read_bytes() == b""

    def test_the_token_stays_at_the_hub(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "good")
        served.cache_redirect = True
        served.commit("o/d", {"large.jsonl": DATA, "small.jsonl": SMALL})
        resolved = resolve(files=["*"])
        assert [fetch(resolved, path).read_bytes() for path in paths(resolved)] == [DATA, SMALL]
        at_store = [asked for asked in served.log if asked.origin == "store"]
        assert len(at_store) == 1 and not at_store[0].authorized
        assert all(asked.authorized for asked in served.log if asked.origin == "hub")
        assert served.asked("resolve-cache")

    def test_the_hubs_own_cache_is_used(self, served: Hub, tmp_path: Path) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        snapshot = tmp_path / "hf" / "datasets--o--d" / "snapshots" / resolved.revision
        snapshot.mkdir(parents=True)
        (snapshot / "train.jsonl").write_bytes(DATA)
        assert fetch(resolved) == snapshot / "train.jsonl"
        assert not served.asked("train.jsonl")
        (snapshot / "train.jsonl").write_bytes(DATA[:-1] + b"!")  # damaged: then not
        assert fetch(resolved) != snapshot / "train.jsonl"

    def test_cut_at_half(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        half = len(DATA) // 2
        served.fault("^/[0-9a-f]{64}$", cut=half)
        assert fetch(resolve()).read_bytes() == DATA
        first, second = (asked for asked in served.log if asked.origin == "store")
        assert first.range is None and first.sent == half
        assert second.range == f"bytes={half}-" and second.status == 206
        assert second.sent == len(DATA) - half  # nothing came twice

    def test_short_bodies(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        served.fault("^/[0-9a-f]{64}$", times=20, short=len(DATA) // 30)  # more than TRIES: each brings something
        assert fetch(resolve()).read_bytes() == DATA
        assert sum(asked.sent for asked in served.log) == len(DATA)

    def test_ranges_that_are_not_heeded(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        served.fault("^/[0-9a-f]{64}$", cut=1000)
        served.fault("^/[0-9a-f]{64}$", whole=True)
        assert fetch(resolve()).read_bytes() == DATA

    def test_a_store_that_always_cuts_and_heeds_no_range(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        served.fault("^/[0-9a-f]{64}$", times=1000, cut=1000, whole=True)
        with pytest.raises(PlainError) as error:
            fetch(resolve())
        assert f"tried {transfer.TRIES} times" in message(error)

    @pytest.mark.parametrize("where", ["/resolve/", "^/[0-9a-f]{64}$"])
    @pytest.mark.parametrize("status", [429, 503])
    def test_busy_then_fine_or_not(self, served: Hub, where: str, status: int) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        served.fault(where, times=1000, status=status, headers={"Retry-After": "0"})
        with pytest.raises(PlainError) as error:
            fetch(resolved)
        assert f"answers {status} (tried {transfer.TRIES} times)" in message(error)
        served.faults[0].times = transfer.TRIES - 1
        assert fetch(resolved).read_bytes() == DATA

    def test_an_expired_link_is_renewed(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        served.fault("^/[0-9a-f]{64}$", status=403)
        assert fetch(resolve()).read_bytes() == DATA
        assert len(served.asked("/resolve/")) == 2

    def test_access_that_is_taken_away_fails_the_run(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        served.repositories["o/d"].gate = "good"
        with pytest.raises(PlainError, match="o/d is gated") as error:
            fetch(resolved)
        assert not isinstance(error.value, Unavailable)
        assert len(served.asked("/resolve/")) == 1

    def test_a_damaged_part_is_fetched_anew(self, served: Hub, tmp_path: Path) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        path = fetch(resolved)
        for damaged in (b"?" * 1000, b"?" * len(DATA), b"?" * (len(DATA) + 1)):
            path.unlink()
            path.with_name("train.jsonl.part").write_bytes(damaged)
            assert fetch(resolved) == path
            assert path.read_bytes() == DATA
        path.write_bytes(b"?" * len(DATA))  # so is a damaged file
        assert fetch(resolved).read_bytes() == DATA
        assert left_in(tmp_path / "home") == ["train.jsonl"]

    def test_bytes_that_are_never_right(self, served: Hub, tmp_path: Path) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        served.fault("^/[0-9a-f]{64}$", times=1000, garbage=True)
        with pytest.raises(PlainError) as error:
            fetch(resolve())
        assert "arrives with other bytes than the hub lists" in message(error)
        assert len([asked for asked in served.log if asked.origin == "store"]) == 2
        assert left_in(tmp_path / "home") == []

    def test_a_full_disk(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        limits = getrlimit(RLIMIT_FSIZE)
        setrlimit(RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(OSError) as error:
                fetch(resolved)
        finally:
            setrlimit(RLIMIT_FSIZE, limits)
        assert Path(str(error.value.filename)).name == "train.jsonl.part"
        assert fetch(resolved).read_bytes() == DATA  # and what fit was not lost
        assert sum(asked.sent for asked in served.log if asked.status == 206) == len(DATA) - 100_000


FETCH = """
import json, sys
from workflow_scripts.sources import download
from workflow_scripts.sources.hub import Resolved
resolved = Resolved.from_json(json.load(open(sys.argv[1])))
download.fetch(resolved.dataset, resolved.revision, resolved.files[0], "source s")
"""


class TestProcesses:
    def start(self, resolved: Resolved, tmp_path: Path) -> subprocess.Popen[bytes]:
        lock = tmp_path / "resolved.json"
        lock.write_text(json.dumps(resolved.to_json()))
        environ = os.environ | {"HF_HOME": str(tmp_path / "hf-home")}
        return subprocess.Popen([sys.executable, "-c", FETCH, str(lock)], cwd=ROOT, env=environ, stdout=subprocess.PIPE)

    def test_a_killed_download_goes_on(self, served: Hub, tmp_path: Path) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        served.fault("^/[0-9a-f]{64}$", delay=0.1)
        process = self.start(resolved, tmp_path)
        home = tmp_path / "home"
        until(lambda: any(path.stat().st_size > 50_000 for path in home.rglob("*.part")))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        (part,) = home.rglob("*.part")
        kept = part.stat().st_size
        assert 50_000 < kept < len(DATA)
        assert fetch(resolved).read_bytes() == DATA
        last = [asked for asked in served.log if asked.origin == "store"][-1]
        assert last.range == f"bytes={kept}-" and last.sent == len(DATA) - kept
        assert left_in(home) == ["train.jsonl"]

    def test_two_at_once_fetch_once(self, served: Hub, tmp_path: Path) -> None:
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        served.fault("^/[0-9a-f]{64}$", delay=0.05)
        processes = [self.start(resolved, tmp_path) for _ in range(2)]
        assert [process.wait(100) for process in processes] == [0, 0]
        assert len([asked for asked in served.log if asked.origin == "store"]) == 1
        assert left_in(tmp_path / "home") == ["train.jsonl"]

    @pytest.mark.parametrize("meanwhile", ["given up", "finished"])
    def test_what_is_waited_for(self, served: Hub, tmp_path: Path, meanwhile: str) -> None:
        """The one before may take its part away, or have the file whole: no part is left, and none is lost."""
        served.commit("o/d", {"train.jsonl": DATA})
        resolved = resolve()
        path = fetch(resolved)
        path.unlink()
        part = path.with_name("train.jsonl.part")
        with files.file_lock(part):
            process = self.start(resolved, tmp_path)
            assert process.stdout is not None and b"another job is downloading it" in process.stdout.readline()
            if meanwhile == "finished":
                path.write_bytes(DATA)
            else:
                part.unlink()
        assert process.wait(100) == 0
        assert path.read_bytes() == DATA
        assert left_in(tmp_path / "home") == ["train.jsonl"]

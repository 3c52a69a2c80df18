"""Datasets by the real `datasets` and `huggingface_hub`, from a hub on this machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest
from huggingface_hub import constants

from tests.standin.hub import Hub
from tests.standin.running import ROOT
from tests.standin.waiting import until
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import download, hub, transfer
from workflow_scripts.sources.hub import HubFile, Resolved, Unavailable

DATA = b"".join(b'{"row": %d}\n' % row for row in range(40_000))  # some 500 kB: large, it is of the store
SMALL = b'{"row": 0}\n'


def resolve(
    dataset: str = "o/d",
    config: str | None = None,
    split: str | list[str] | None = None,
    revision: str | None = None,
    files: list[str] | None = None,
) -> Resolved:
    return hub.resolve(dataset, config, split, revision, files or [])


def paths(resolved: Resolved) -> list[str]:
    return [file.path for file in resolved.files]


def fetch(resolved: Resolved, name: str | None = None) -> Path:
    file = next(file for file in resolved.files if name in (None, file.path))
    return download.fetch(resolved.dataset, resolved.revision, file, "source s")


def message(error: pytest.ExceptionInfo[PlainError]) -> str:
    """The plain line, after a look that it is one."""
    text = str(error.value)
    assert text and "\n" not in text
    return text


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


CONFIGS = b"""---
license: mit
configs:
- config_name: chat
  data_files:
  - split: train
    path: chat/train-*.parquet
  - split: held_out
    path: ["chat/held/*.parquet", "chat/more.parquet"]
- config_name: code
  data_dir: code
- config_name: lines%s
  data_files: "lines/*.jsonl"
---
# A dataset
"""
MIXED = {
    "chat/train-b.parquet": b"b",
    "chat/train-a.parquet": b"a",
    "chat/held/x.parquet": b"x",
    "chat/more.parquet": b"m",
    "code/train.jsonl": SMALL,
    "code/test.jsonl": b"{}\n",
    "lines/1.jsonl": SMALL,
    "lines/sub/2.jsonl": SMALL,
}


class TestConfigsAndSplits:
    def test_names_of_shards_give_the_splits(self, served: Hub) -> None:
        shards = [f"data/train-0000{shard}-of-00002.parquet" for shard in (1, 0)]
        commit = served.commit("o/d", dict.fromkeys(shards, DATA) | {"data/test-00000-of-00001.parquet": SMALL})
        resolved = resolve()
        assert (resolved.revision, paths(resolved)) == (commit, sorted(shards))
        assert resolved.files[0].bytes == len(DATA) and resolved.files[0].sha256 is not None
        assert paths(resolve(split=["test", "train"])) == ["data/test-00000-of-00001.parquet", *sorted(shards)]
        assert resolve(split="test").files[0].sha256 is None
        assert Resolved.from_json(json.loads(json.dumps(resolved.to_json()))) == resolved

    def test_a_card_marks_its_default_config(self, served: Hub) -> None:
        served.commit("o/d", {"README.md": CONFIGS % b"\n  default: true"} | MIXED)
        assert paths(resolve()) == ["lines/1.jsonl"]

    def test_several_configs_and_no_default(self, served: Hub) -> None:
        served.commit("o/d", {"README.md": CONFIGS % b""} | MIXED)
        with pytest.raises(PlainError) as error:
            resolve()
        assert "name one as `config`: chat, code, lines" in message(error)
        with pytest.raises(PlainError) as error:
            resolve(config="cod")
        assert "no config 'cod'; it has chat, code, lines" in message(error)

    def test_globs_of_a_card_and_kinds_of_files_side_by_side(self, served: Hub) -> None:
        """`datasets` itself reads every config by the first one's kind; here a file's ending says its kind."""
        served.commit("o/d", {"README.md": CONFIGS % b""} | MIXED)
        assert paths(resolve(config="chat")) == ["chat/train-a.parquet", "chat/train-b.parquet"]
        assert paths(resolve(config="chat", split="held_out")) == ["chat/held/x.parquet", "chat/more.parquet"]
        assert paths(resolve(config="code")) == ["code/train.jsonl"]
        assert paths(resolve(config="lines")) == ["lines/1.jsonl"]

    def test_the_only_split_need_not_be_train(self, served: Hub) -> None:
        served.commit("o/d", {"test.jsonl": SMALL})
        assert paths(resolve()) == ["test.jsonl"]

    def test_no_train_split(self, served: Hub) -> None:
        served.commit("o/d", {"test.jsonl": SMALL, "validation.jsonl": SMALL})
        with pytest.raises(PlainError) as error:
            resolve()
        assert "no split `train`" in message(error) and "validation, test" in message(error)

    def test_a_renamed_split(self, served: Hub) -> None:
        served.commit("o/d", {"README.md": CONFIGS % b""} | MIXED)
        with pytest.raises(PlainError) as error:
            resolve(config="chat", split=["train", "train_sft"])
        assert "(config chat) has no split 'train_sft'; it has train, held_out" in message(error)

    def test_globs_over_the_repository(self, served: Hub) -> None:
        served.commit("o/d", {"README.md": b"# none", "a/1.parquet": b"1", "a/2.parquet": b"2", "b.json.gz": b"3"})
        assert paths(resolve(files=["b.json.gz", "a/*.parquet", "a/1*"])) == ["a/1.parquet", "a/2.parquet", "b.json.gz"]
        assert not served.asked("README")  # no card is needed
        with pytest.raises(PlainError) as error:
            resolve(files=["c/*"])
        assert "c/* is not in o/d; it holds README.md, a/1.parquet" in message(error)

    def test_files_that_are_not_read(self, served: Hub) -> None:
        served.commit("o/d", {"train.csv": b"a,b\n", "test.jsonl": SMALL, "train.png": b"png"})
        with pytest.raises(PlainError) as error:
            resolve()  # and not: the split `test`, since nothing of `train` can be read
        assert "train.csv can't be read" in message(error)

    def test_a_card_cannot_name_what_is_outside(self, served: Hub) -> None:
        for path in ("/etc/*.json", "https://example.org/a.json", "../x.json", "zip://a.json::b.zip"):
            card = f"---\nconfigs:\n- config_name: a\n  data_files: '{path}'\n---\n"
            served.commit("o/d", {"README.md": card.encode(), "a.json": SMALL})
            with pytest.raises(PlainError) as error:
                resolve()
            assert "does not name files inside of it" in message(error)

    @pytest.mark.parametrize(
        "yaml", ["configs: [", "configs: 3", "configs:\n- data_files: a", "configs:\n- config_name: a\n  data_files: 3"]
    )
    def test_a_broken_card(self, served: Hub, yaml: str) -> None:
        served.commit("o/d", {"README.md": f"---\n{yaml}\n---\n".encode(), "train.jsonl": SMALL})
        with pytest.raises(PlainError) as error:
            resolve()
        assert "as `files`" in message(error)
        assert paths(resolve(files=["train.jsonl"])) == ["train.jsonl"]

    def test_a_repository_of_many_files_is_listed_by_pages(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        served.commit("o/d", {"train.jsonl": DATA, "test.jsonl": SMALL})
        by_info = resolve()
        monkeypatch.setattr(hub, "LISTED_WITH_INFO", 2)
        assert resolve() == by_info
        assert len(served.asked("/tree/")) == 1


# By name: what a repository holds, and the configs to ask for.
LAYOUTS: dict[str, tuple[list[str], list[str | None]]] = {
    "o/shards": (["data/train-00000-of-00001.jsonl", "data/odd-00000-of-00001.jsonl", "data/other.jsonl"], [None]),
    "o/words": (["train.jsonl", "sub/dev-1.jsonl", "my_test_1.jsonl", "contest.jsonl", "trained.jsonl"], [None]),
    "o/folders": (["train/a.jsonl", "train/train-b.jsonl", "evaluation/c.jsonl", "d.jsonl"], [None]),
    "o/one": (["deep/er/rows.jsonl.gz"], [None]),
    "o/all": (["a.jsonl", "b/c.jsonl", ".hidden/d.jsonl", "__special__/e.jsonl", "config.json", "LICENSE"], [None]),
    "o/card": (list(MIXED), [None, "chat", "lines"]),
}
LOOK = """
import json, sys
from datasets import load_dataset_builder
for name, commit, configs in json.load(sys.stdin):
    for config in configs:
        splits = load_dataset_builder(name, config, revision=commit).config.data_files
        names = {str(split): sorted({url.split("@")[1].split("/", 1)[1] for url in splits[split]}) for split in splits}
        print(json.dumps([name, config, names]))
"""


def test_splits_are_those_of_datasets(served: Hub, tmp_path: Path) -> None:
    """Where `datasets` itself reads a repository, it finds the same splits and files."""
    asked = []
    for name, (held, configs) in LAYOUTS.items():
        card = {"README.md": CONFIGS % b"\n  default: true"} if name == "o/card" else {}
        asked.append((name, served.commit(name, dict.fromkeys(held, SMALL) | card), configs))
    environ = os.environ | {"HF_HOME": str(tmp_path / "hf-home"), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], input=json.dumps(asked), env=environ, capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in looked.stdout.splitlines()]
    assert len(found) == sum(len(configs) for _, _, configs in asked)
    for name, config, splits in found:
        for split, names in splits.items():
            assert paths(resolve(name, config, split)) == names
        with pytest.raises(PlainError) as error:
            resolve(name, config, "none")
        assert message(error).endswith(f"has no split 'none'; it has {', '.join(splits)}")


class TestWhatIsNotToBeHad:
    def test_gated(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        served.commit("o/d", {"train.jsonl": SMALL})
        served.repositories["o/d"].gate = "good"
        with pytest.raises(Unavailable) as error:
            resolve()
        assert error.value.kind == "gated"
        assert message(error) == (
            "o/d is gated: accept its terms at https://huggingface.co/datasets/o/d, then set HF_TOKEN"
        )
        monkeypatch.setenv("HF_TOKEN", "another")
        with pytest.raises(Unavailable) as error:
            resolve(files=["train.jsonl"])
        assert error.value.kind == "gated" and "your token was refused (403)" in message(error)
        monkeypatch.setenv("HF_TOKEN", "good")
        assert fetch(resolve()).read_bytes() == SMALL

    def test_private_or_missing(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        served.commit("o/private", {"train.jsonl": SMALL})
        served.repositories["o/private"].private = "good"
        for dataset in ("o/private", "o/none"):
            for token in (None, "another"):
                if token:
                    monkeypatch.setenv("HF_TOKEN", token)
                with pytest.raises(Unavailable) as error:
                    resolve(dataset)
                assert error.value.kind == "missing"
                assert f"there is no dataset {dataset} on the hub, or it is private" in message(error)
        monkeypatch.setenv("HF_TOKEN", "good")
        assert fetch(resolve("o/private")).read_bytes() == SMALL

    def test_script_only(self, served: Hub) -> None:
        served.commit("o/d", {"README.md": b"# a", "d.py": b"raise SystemExit('run')"})
        with pytest.raises(Unavailable) as error:
            resolve()
        assert error.value.kind == "script_only" and "d.py" in message(error)
        assert not served.asked("resolve")

    def test_a_script_beside_data_is_passed_over(self, served: Hub) -> None:
        served.commit("o/d", {"d.py": b"raise SystemExit('run')", "train.jsonl": SMALL, "test.jsonl": SMALL})
        assert paths(resolve()) == ["train.jsonl"]
        with pytest.raises(PlainError) as error:
            resolve(files=["d.py"])
        assert "d.py can't be read" in message(error)
        with pytest.raises(PlainError):
            download.fetch("o/d", resolve().revision, HubFile("d.py", 3, None, None), "source s")
        assert not served.asked("d.py")

    def test_nothing_to_read(self, served: Hub) -> None:
        served.commit("o/d", {"README.md": b"# a", "photo.png": b"png"})
        with pytest.raises(PlainError, match="holds no data files") as error:
            resolve()
        assert not isinstance(error.value, Unavailable)


class TestRevisions:
    def test_a_branch_that_moves(self, served: Hub) -> None:
        old = served.commit("o/d", {"train.jsonl": SMALL, "README.md": b"# old"})
        before = resolve()
        new = served.commit("o/d", {"train.jsonl": b"{}\n", "README.md": b"# new"})
        after = resolve()
        assert (before.revision, after.revision) == (old, new)
        assert fetch(before).read_bytes() == SMALL
        assert fetch(after).read_bytes() == b"{}\n"
        assert resolve(revision=old) == before

    def test_a_busy_hub_does_not_bring_back_the_old_commit(self, served: Hub) -> None:
        """huggingface_hub alone takes a branch's last known commit then, without a word."""
        served.commit("o/d", {"train.jsonl": SMALL, "README.md": b"# old"})
        resolve()
        new = served.commit("o/d", {"train.jsonl": b"{}\n", "README.md": b"# new"})
        served.fault("/", times=2, status=503)
        served.fault("README", status=429)
        assert resolve().revision == new

    def test_other_branches_and_commits(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": SMALL})
        other = served.commit("o/d", {"train.jsonl": DATA}, branch="refs/convert/parquet")
        assert resolve(revision="refs/convert/parquet").revision == other
        for revision in ("nope", "0" * 40):
            with pytest.raises(PlainError) as error:
                resolve(revision=revision)
            assert f"o/d has no revision '{revision}'" in message(error)
            assert not isinstance(error.value, Unavailable)


class TestFailures:
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_hub_that_is_busy_for_a_while(self, served: Hub, status: int) -> None:
        served.commit("o/d", {"train.jsonl": SMALL, "README.md": b"# a"})
        served.fault("/api/", times=2, status=status, headers={"Retry-After": "0"})
        served.fault("README", status=status)
        assert paths(resolve()) == ["train.jsonl"]
        assert len(served.asked("/api/")) == 3

    @pytest.mark.parametrize("status", [429, 503])
    @pytest.mark.parametrize("where", ["/api/", "README"])
    def test_a_hub_that_fails_for_good(self, served: Hub, status: int, where: str) -> None:
        served.commit("o/d", {"train.jsonl": SMALL, "README.md": b"# a"})
        served.fault(where, times=1000, status=status)
        with pytest.raises(PlainError) as error:
            resolve()
        assert f"keeps answering {status}. Run the same line again later" in message(error)
        assert not isinstance(error.value, Unavailable)

    def test_a_longer_pause_than_is_waited_for(self, served: Hub) -> None:
        served.commit("o/d", {"train.jsonl": SMALL})
        served.fault("/api/", status=429, headers={"ratelimit": '"api";r=0;t=299'})
        with pytest.raises(PlainError, match="keeps answering 429"):
            resolve()

    def test_no_connection(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
        with pytest.raises(PlainError) as error:
            resolve()
        assert "http://127.0.0.1:9 can't be reached" in message(error)
        assert not isinstance(error.value, Unavailable)

    def test_offline(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        served.commit("o/d", {"train.jsonl": SMALL, "test.jsonl": b"{}\n"})
        resolved = resolve(split=["train", "test"])
        kept = fetch(resolved, "train.jsonl")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(PlainError, match="HF_HUB_OFFLINE is set") as error:
            resolve()
        assert not isinstance(error.value, Unavailable)
        assert fetch(resolved, "train.jsonl") == kept
        with pytest.raises(PlainError, match="HF_HUB_OFFLINE is set"):
            fetch(resolved, "test.jsonl")

    def test_a_refused_token(self, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        """The hub answers so for every dataset: none of them is missing."""
        served.commit("o/d", {"train.jsonl": SMALL})
        monkeypatch.setenv("HF_TOKEN", "expired")
        served.fault("/api/", status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        with pytest.raises(PlainError, match="refuses your token") as error:
            resolve()
        assert not isinstance(error.value, Unavailable)


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

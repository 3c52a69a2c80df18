"""Datasets by the real `datasets` and `huggingface_hub`, from a hub on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.integration.from_hub import DATA, SMALL, fetch, message, paths, resolve
from tests.standin.hub import Hub
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import download, hub
from workflow_scripts.sources.hub import HubFile, Resolved, Unavailable

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

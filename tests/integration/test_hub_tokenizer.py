"""The tokenizer of a model on the hub: its files alone, at the commit that was looked up first."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.standin.hub import Hub
from tests.standin.tiny_tokenizer import make_tokenizer
from workflow_scripts import config
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import tokenizer as tokenizers


@pytest.fixture
def model_files(tmp_path: Path) -> dict[str, bytes]:
    folder = make_tokenizer(tmp_path / "made")
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {**held, "config.json": b"{}", "model.safetensors": b"weights" * 1000, "original/params.json": b"{}"}


def settings(**changes: Any) -> config.Config:
    values = {
        "name": "m",
        "sources": {"a": {"path": "a.jsonl"}},
        "model": {"path": "own/model"},
        "prompts": {"max_prompt_tokens": 100},
        **changes,
    }
    return config.parse(values, "c")


def locked(of: config.Config) -> dict[str, Any]:
    found = tokenizers.lock_tokenizer(of)
    assert found is not None
    return found


def test_its_files_alone_are_fetched_at_the_first_commit(served: Hub, model_files: dict[str, bytes]) -> None:
    commit = served.commit("own/model", model_files)
    recorded = locked(settings())
    assert recorded == {"from": "own/model", "revision": commit}
    assert not served.asked("/resolve/")
    served.commit("own/model", {**model_files, "tokenizer.json": b"another"})
    loaded, found = tokenizers.load(settings(), recorded)
    assert len(loaded("story")["input_ids"]) > 0
    names = {file["name"] for file in found}
    assert names == {"chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {asked.path.rpartition("/")[2] for asked in served.asked("/resolve/", "HEAD")} == names
    assert sum(asked.sent for asked in served.log) == sum(len(model_files[name]) for name in names)

    before = len(served.asked("/resolve/", "HEAD"))
    tokenizers.load(settings(), recorded)
    assert len(served.asked("/resolve/", "HEAD")) == before


def test_a_full_commit_is_not_asked_for(served: Hub, model_files: dict[str, bytes]) -> None:
    commit = served.commit("own/model", model_files)
    assert locked(settings(model={"path": "own/model", "revision": commit}))["revision"] == commit
    assert served.log == []


def test_offline_it_comes_from_the_cache_or_is_missed(
    served: Hub, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = served.commit("own/model", model_files)
    recorded = locked(settings())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PlainError, match=r"model\.path: own/model is not in the hub's cache, and HF_HUB_OFFLINE"):
        locked(settings())
    with pytest.raises(PlainError, match=r"model\.path: own/model at revision .* is not in the hub's cache"):
        tokenizers.load(settings(), recorded)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    tokenizers.load(settings(), recorded)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    tokenizers.load(settings(), recorded)
    assert commit == recorded["revision"]


def test_what_the_hub_does_not_have_is_said(served: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlainError, match=r"model\.path: the hub has no model own/model"):
        locked(settings())
    with pytest.raises(PlainError, match=r"model\.tokenizer: the hub has no model own/other"):
        locked(settings(model={"path": "own/model", "tokenizer": "own/other"}))
    served.fault("/api/models", times=99, status=503)
    with pytest.raises(PlainError, match=r"model\.path: own/model could not be downloaded"):
        locked(settings())
    context = settings(prompts={}, sampling={"max_tokens": 8}, servers={"args": {"context-length": 64}})
    assert tokenizers.lock_tokenizer(context) is None
    assert "prompts are not counted: model.path: own/model" in capsys.readouterr().err

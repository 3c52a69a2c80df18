"""RUN changes with what decides the content, and with nothing else."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import config, planning, start
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import ContentHashes, model_identity
from workflow_scripts.prompts.tokenizer import lock_tokenizer


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"prompt": "{name}"}}\n')
    return tmp_path


def values(**changes: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "sources": {
            "a": {"path": "a.jsonl", "shape": "prompt_response"},
            "b": {"path": "b.jsonl", "shape": "prompt_response"},
        },
        "model": {"path": "org/model"},
        **changes,
    }


def run_name(**changes: Any) -> str:
    return planning.plan(values(**changes), "c").run.name


@pytest.mark.parametrize(
    "changes",
    [
        {"servers": {"count": 4, "leases": 3, "start_timeout": 5, "args": {"mem-fraction-static": 0.5}}},
        {"publish": {"store": "embedded", "bucket": "bkt"}},
        {"training": {"max_tokens": 5}},
        {"training": {"answers": "recorded", "formats": ["jsonl"], "draft_vocabulary": 9}},
        {"results": "elsewhere"},
        {"sampling": {"temperature": 0.7}},
        {"prompts": {"allow_short": True}},
        {"prompts": {"eval": 0, "dedupe": {"near": False}}},
    ],
)
def test_what_decides_no_content_changes_nothing(project: Path, changes: dict[str, Any]) -> None:
    assert run_name(**changes) == run_name()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"sampling": {"temperature": 0.6}},
        {"chunks": {"size": 10}},
        {"prompts": {"seed": 1}},
        {"prompts": {"eval": 0.1}},
        {"prompts": {"dedupe": {"near": 0.8}}},
        {"model": {"path": "org/other"}},
        {"servers": {"args": {"quantization": "fp8"}}},
        {"servers": {"args": {"a-flag-of-tomorrow": 1}}},
        {"sources": dict(reversed(values()["sources"].items()))},
    ],
)
def test_what_decides_the_content_makes_another_run(project: Path, changes: dict[str, Any]) -> None:
    assert run_name(**changes) != run_name()


STAND_INS = {"x": {"dataset": "org/x"}, "y": {"dataset": "org/y"}}
TURNED = dict(reversed(STAND_INS.items()))


def test_the_order_of_what_stands_in_counts_and_is_told(project: Path) -> None:
    for changes, turned, told in (
        ({"prompts": {"total": 9, "fill": STAND_INS}}, {"prompts": {"total": 9, "fill": TURNED}}, "prompts.fill"),
        (
            {"sources": {"a": {"path": "a.jsonl", "substitutes": STAND_INS}}},
            {"sources": {"a": {"path": "a.jsonl", "substitutes": TURNED}}},
            "sources.a.substitutes",
        ),
    ):
        one, other = (planning.plan(values(**each), "c") for each in (changes, turned))
        assert one.run.name != other.run.name
        assert start.differing_keys(one.identity, other.identity) == [f"the order of {told}"]
        assert start.differing_keys(one.identity, planning.plan(values(), "c").identity)


def test_a_chat_template_counts_by_its_content(project: Path) -> None:
    for name in ("y.jinja", "z.jinja"):
        (project / name).write_text("one")
    one, moved = (run_name(servers={"args": {"chat-template": name}}) for name in ("y.jinja", "z.jinja"))
    (project / "y.jinja").write_text("two")
    assert one == moved != run_name(servers={"args": {"chat-template": "y.jinja"}})
    assert run_name(servers={"args": {"chat-template": "chatml"}}) not in (one, run_name())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"chunks": {"size": 500}}, {}),
        ({"servers": {"args": {"context-length": "8192"}}}, {"servers": {"args": {"context-length": 8192}}}),
        (
            {"sources": {"a": {"dataset": "org/a", "split": ["train"], "where": {"x": ["en"], "y": 1.0}}}},
            {"sources": {"a": {"dataset": "org/a", "split": "train", "where": {"x": "en", "y": 1}}}},
        ),
    ],
)
def test_two_spellings_of_one_thing_are_one_run(project: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    plans = [planning.plan(values(**changes), "c") for changes in (one, other)]
    assert plans[0].run.name == plans[1].run.name and plans[0].sources == plans[1].sources


def test_files_count_by_content_wherever_they_stand(project: Path) -> None:
    before = run_name()
    shutil.copytree(project, project / "moved", ignore=shutil.ignore_patterns("home", "moved"))
    moved = values()
    moved["sources"]["a"]["path"] = "moved/a.jsonl"
    assert planning.plan(moved, "c").run.name == before
    (project / "a.jsonl").write_text('{"prompt": "c"}\n')
    assert run_name() != before


def test_a_shard_is_shared_by_runs_that_read_the_same_rows(project: Path) -> None:
    first = planning.plan(values(), "c").sources
    taken = values(name="other")
    taken["sources"]["a"]["take"] = 1
    assert planning.plan(taken, "c").sources == first
    taken["sources"]["a"]["columns"] = {"prompt": "text"}
    assert planning.plan(taken, "c").sources["a"]["shard"] != first["a"]["shard"]


def test_every_source_that_is_not_there_is_told(project: Path) -> None:
    lost = values()
    lost["sources"]["a"]["path"] = "none.jsonl"
    lost["sources"]["b"]["path"] = "x/*.parquet"
    with pytest.raises(PlainError) as caught:
        planning.plan(lost, "my.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["my.yaml", "sources.a.path"], ["my.yaml", "sources.b.path"]]


def test_a_local_model_counts_by_config_tokenizer_and_weights(project: Path) -> None:
    folder = project / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"):
        (folder / name).write_text(name)
    before = model_identity(str(folder), None, ContentHashes())
    (folder / "README.md").write_text("no part of it")
    assert model_identity(str(folder), None, ContentHashes()) == before
    for name in ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"):
        (folder / name).write_text("other")
        after = model_identity(str(folder), None, ContentHashes())
        assert after != before
        before = after


def test_all_that_a_tokenizer_is_bound_by_is_in_run(project: Path) -> None:
    """Or a change would end the run for good: the same RUN, and other files than it began with."""
    folder = project / "model"
    settings = values(model={"path": "model"}, prompts={"max_prompt_tokens": 100})
    for name in ("config.json", "tokenizer.json", "x.tiktoken", "additional_chat_templates/rag.jinja"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub" / "x.model").write_text("no part of it")
    recorded = lock_tokenizer(config.parse(settings, "c"))
    assert recorded is not None and len(recorded["files"]) == 4
    before = planning.plan(settings, "c").run.name
    for file in recorded["files"]:
        (folder / file["name"]).write_text("other")
        after = planning.plan(settings, "c").run.name
        assert after != before, file
        before = after


def test_a_chat_template_counts_by_content(project: Path) -> None:
    for name in ("one", "two"):
        (project / f"{name}.jinja").write_text("1")

    def named(template: str) -> str:
        return run_name(servers={"args": {"chat-template": template}})

    before = named("one.jinja")
    assert named("two.jinja") == before != run_name()
    (project / "one.jinja").write_text("2")
    assert len({named("one.jinja"), before, named("chatml"), named("llama-2")}) == 4


@pytest.mark.parametrize("path", ["/nope", "nope", "a/b/c", "./nope"])
def test_a_model_that_is_no_folder_and_no_hub_id_is_told(project: Path, path: str) -> None:
    for model in ({"path": path}, {"path": "org/model", "tokenizer": path}):
        with pytest.raises(PlainError, match=rf"c: model\.{list(model)[-1]}: .*: no such folder, and no hub id"):
            planning.plan(values(model=model), "c")


def test_of_large_weights_64_blocks_count_first_and_last_among_them(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    size = 65 * (1 << 20) + 17
    with path.open("wb") as file:
        file.truncate(size)
    before = ContentHashes().of(path, sampled=True)
    assert before == hashlib.sha256(bytes(64 << 20)).hexdigest()
    for offset in (0, size - 1):
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"x")
        after = ContentHashes().of(path, sampled=True)
        assert after != before
        before = after


def test_hashes_are_remembered_and_a_lost_cache_only_costs_time(project: Path) -> None:
    hashes = ContentHashes()
    found = hashes.of(project / "a.jsonl")
    hashes.save()
    cache = project / "home" / "content-hashes.json"
    assert found in cache.read_text()
    cache.write_text("{")
    assert ContentHashes().of(project / "a.jsonl") == found


def test_differing_keys_are_named() -> None:
    old = {"sampling": {"temperature": 0.7}, "sources": [["a", {"take": 1}]], "args": {}}
    new = {"sampling": {"temperature": 0.6}, "sources": [["a", {"take": 2}], ["b", {}]], "args": {}}
    assert start.differing_keys(old, new) == ["sampling.temperature", "sources.a.take", "sources.b"]

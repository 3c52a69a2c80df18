"""A config's mistakes are plain lines, and what can be known from it is known before anything is read."""

import datetime
import re
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import config, files
from workflow_scripts.errors import PlainError

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "name": "mine",
    "sources": {"a": {"path": "a.jsonl", "shape": "messages", "take": 10}},
    "model": {"path": "org/model"},
}


def with_changes(changes: dict[str, Any]) -> dict[str, Any]:
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in GOOD.items()}
    for dotted, value in changes.items():
        node = values
        *parents, last = dotted.split(".")
        for parent in parents:
            node[parent] = dict(node.get(parent, {}))
            node = node[parent]
        node[last] = value
    return values


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"nmae": "x"}, "my.yaml: nmae: unknown key; did you mean name? allowed here: name, results, sources"),
        ({"sources.a.pth": "x"}, "my.yaml: sources.a.pth: unknown key; did you mean path? allowed here: path, dataset"),
        ({"name": "My run"}, "my.yaml: name: 'My run' is not allowed; allowed: lower-case letters, digits and _"),
        (
            {"sources.A-b": {"path": "x", "shape": "messages"}},
            "my.yaml: sources.A-b: 'A-b' is not allowed; allowed: lower",
        ),
        ({"sources": {}}, "my.yaml: sources: must not be empty"),
        ({"name": "sources"}, "my.yaml: name: 'sources' is a folder of its own"),
        ({"results": "re{s}ults"}, "my.yaml: results: holds a brace"),
        ({"prompts.seed": 2**64}, "my.yaml: prompts.seed:"),
        ({"prompts": {"dedupe": {"near": True}}}, "my.yaml: prompts.dedupe.near: True should be a number or False"),
        ({"prompts": {"dedupe": {"near": 1.5}}}, "my.yaml: prompts.dedupe.near: 1.5 should be less than or equal to 1"),
        ({"prompts": {"eval": 0.6}}, "my.yaml: prompts.eval: 0.6 should be less than or equal to 0.5"),
        (
            {"sources.a.take": "ten"},
            "my.yaml: sources.a.take: 'ten' should be a whole number or 'all'",
        ),
        ({"sources.a.take": 0}, "my.yaml: sources.a.take: 0 should be greater than or equal to 1"),
        ({"sources.a.shape": "chat"}, "my.yaml: sources.a.shape: 'chat' should be 'messages', 'sharegpt'"),
        (
            {"model.path": "embedded:SmolLM3"},
            "my.yaml: model.path: there is no embedded:SmolLM3; there is",
        ),
        (
            {"sources.a.columns": {"input": "x"}},
            "my.yaml: sources.a: `columns.input` means nothing to the shape messages, which has prompt, system, tools",
        ),
        (
            {"sources.a": {"path": "x", "shape": "message_tree", "sample": 3}},
            "my.yaml: sources.a: `sample`: rows of the shape message_tree belong together",
        ),
        ({"sources.a.columns": {"prompt": ""}}, "my.yaml: sources.a.columns.prompt: must not be empty"),
        ({"sources.a": {"dataset": "a/b", "split": ""}}, "my.yaml: sources.a.split: must not be empty"),
        ({"sources.a": {"dataset": "a/b", "config": ""}}, "my.yaml: sources.a.config: must not be empty"),
        ({"sources.a": {"dataset": "a/b", "split": ["x", "x"]}}, "my.yaml: sources.a: `split` names something twice"),
        ({"sources.a.where": {"x": []}}, "my.yaml: sources.a.where.x: must not be empty"),
        ({"smapling": {}}, "my.yaml: smapling: unknown key; did you mean sampling? allowed here: name, results"),
        ({"model": {}}, "my.yaml: model.path: is missing"),
        ({"model": "org/model"}, "my.yaml: model: 'org/model' should be a mapping"),
        ({"sources.a": {"shape": "auto"}}, "my.yaml: sources.a: give one of `path` (local files), `dataset` (the hub)"),
        (
            {"sources.a": {"path": "a", "dataset": "org/a"}},
            "my.yaml: sources.a: give one of `path` (local files), `dataset` (the hub)",
        ),
        (
            {"sources.a": {"path": "a", "split": "train"}},
            "my.yaml: sources.a: `split` is for datasets of the hub; with `path` leave it out",
        ),
        (
            {"sources.a": {"dataset": "org/a", "split": "train", "files": ["*.json"]}},
            "my.yaml: sources.a: give `files`, or `config` and `split`, not both",
        ),
        (
            {"sources.a": {"dataset": "infinity"}},
            "my.yaml: sources.a.dataset: 'infinity' is not allowed; allowed: owner/name, as on the hub",
        ),
        (
            {"sources.a": {"dataset": "org/a", "config": 0o625}},
            'my.yaml: sources.a.config: 405 is a number; quote it: "405" (or "0625": YAML reads a leading 0 as octal)',
        ),
        ({"prompts.exclude": [12]}, 'my.yaml: prompts.exclude.0: 12 is a number; quote it: "12"'),
        (
            {"prompts.decontaminate": ["s3://b/x"]},
            "my.yaml: prompts.decontaminate.files: 's3:/b/x' is no path; benchmarks are files here: download it",
        ),
        (
            {"prompts.decontaminate": {"files": ["b.jsonl"], "threshold": True}},
            "my.yaml: prompts.decontaminate.threshold: True should be a number",
        ),
        (
            {"prompts.decontaminate": {"files": ["b.jsonl"], "columns": [""]}},
            "my.yaml: prompts.decontaminate.columns.0: must not be empty",
        ),
        (
            {"sources.a": {"dataset": "org/a", "config": 3.0}},
            'my.yaml: sources.a.config: 3.0 is a number; quote it: "3.0"',
        ),
        (
            {"sources.a": {"dataset": "org/a", "revision": 1234567}},
            'my.yaml: sources.a.revision: 1234567 is a number; quote it: "1234567"',
        ),
        (
            {"sources.a": {"dataset": "org/a", "split": ["train", 1]}},
            'my.yaml: sources.a.split.1: 1 is a number; quote it: "1"',
        ),
        ({"sources.a.substitutes": "openorca"}, "my.yaml: sources.a.substitutes: write a list: [openorca]"),
        ({"sources.a.substitutes": ["openorca", None]}, "my.yaml: sources.a.substitutes: write a list of names, or"),
        ({"sources.a.substitutes": {"b": "openorca"}}, "my.yaml: sources.a.substitutes.b: write b: {use: openorca}"),
        ({"prompts": {"total": 5, "fill": "openorca"}}, "my.yaml: prompts.fill: write a list: [openorca]"),
        ({"sources.a": "infinity_instruct"}, "my.yaml: sources.a: write a: {use: infinity_instruct}"),
        ({"sources": ["openorca"]}, "my.yaml: sources: write a mapping of your own names to datasets"),
        ({"sources.a": {"dataset": "org/a", "files": "x.jsonl"}}, "my.yaml: sources.a.files: write a list: [x.jsonl]"),
        ({"sources.a": {"dataset": "https://hub.org/datasets/o/n/tree"}}, "my.yaml: sources.a.dataset: write o/n"),
        (
            {"sources.a.where": {"day": datetime.date(2024, 1, 1)}},
            "my.yaml: sources.a.where.day: a date should be text or a whole number or a number or true or",
        ),
        ({"sources.a": {"use": "infinty"}}, "my.yaml: sources.a.use: 'infinty' is not in the catalogue; did you mean"),
        (
            {"sources.a.substitutes": ["a"]},
            "my.yaml: sources.a.substitutes: 'a' is the same dataset again; name others",
        ),
        (
            {"sources.b": {"use": "openorca", "substitutes": ["toolace", "openorca"]}},
            "my.yaml: sources.b.substitutes: 'openorca' is the same dataset again; name others",
        ),
        ({"prompts.fill": ["openorca"]}, "my.yaml: prompts: `fill` fills up to `total`: give `total` too"),
        ({"sources.a": {"dataset": "org/a", "split": []}}, "my.yaml: sources.a.split: must not be empty"),
        ({"prompts.fill": ["openorka"]}, "my.yaml: prompts.fill: 'openorka' is not in the catalogue; did you mean"),
        ({"chunks": {"size": 5, "count": 2}}, "my.yaml: chunks: give `size` or `count`, not both"),
        ({"sources.a.take": 10**12}, "my.yaml: that is 2,000,000,000 chunks, and 100,000 are the most"),
        ({"sources.a.take": 2**63}, "my.yaml: sources.a.take: 9223372036854775808 has more than 64 bits"),
        ({"sources.a.where": {"x": [1, -(2**64)]}}, "my.yaml: sources.a.where.x: -18446744073709551616"),
        ({"sources.a.where": {"x": "\ud800"}}, "my.yaml: sources.a.where.x: '\\ud800' holds half a character"),
        ({"sources.a.where": {"\ud800": 1}}, "my.yaml: sources.a.where: '\\ud800' holds half a character"),
        ({"sources.a.where": {"x": float("nan")}}, "my.yaml: sources.a.where.x: nan is a number; quote it"),
        ({"servers.args": {"a-flag": 2**70}}, "my.yaml: servers.args.a-flag: 1180591620717411303424 has more"),
        ({"servers.args": {"context-length": "180"}}, "my.yaml: sampling.max_tokens (4096) leaves no room for"),
        (
            {"sources.a": {"path": "x", "columns": {"prompt": "q", "input": "q"}}},
            "my.yaml: sources.a.columns: `prompt` and `input` are both the column 'q'; leave one out",
        ),
        ({"prompts.total": 11}, "my.yaml: prompts.total (11) is more than the sources' takes together (10)"),
        ({"sampling.temperature": "hot"}, "my.yaml: sampling.temperature: 'hot' should be a number"),
        ({"servers.args": {"api-key": "x"}}, "my.yaml: servers.args: 'api-key' looks like a secret"),
        (
            {"servers.args": {"mem_fraction": 1}},
            "my.yaml: servers.args: write the flag 'mem_fraction' as 'mem-fraction'",
        ),
        ({"servers.urls": ["http://u:p@h:1"]}, "my.yaml: servers.urls: holds a user or password"),
        ({"servers.urls": ["h:1"]}, "my.yaml: servers.urls: not an http(s) URL"),
        ({"publish.store": "s3"}, "my.yaml: publish: `bucket` is missing"),
        (
            {"publish": {"store": "s3", "bucket": "bkt", "prefix": "completions/x", "protect": ["completions/"]}},
            "my.yaml: publish: prefix 'completions/x/' meets the protected prefix 'completions/'",
        ),
        (
            {"publish": {"store": "s3", "bucket": "bkt", "prefix": "a", "protect": ["a/b"]}},
            "my.yaml: publish: prefix 'a/' meets the protected prefix 'a/b'",
        ),
        (
            {"publish": {"store": "s3", "bucket": "bkt", "prefix": "../x"}},
            "my.yaml: publish.prefix: '../x' is no prefix",
        ),
        (
            {"servers.args": {"context-length": 4096}},
            "my.yaml: sampling.max_tokens (4096) leaves no room for a prompt in servers.args.context-length (4096)",
        ),
    ],
)
def test_a_mistake_is_one_plain_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(PlainError) as caught:
        config.parse(with_changes(changes), "my.yaml")
    lines = str(caught.value).splitlines()
    assert any(found.startswith(line) for found in lines), lines
    assert all(found.startswith("my.yaml: ") for found in lines) and len(lines) == 1


def test_paths_below_home_are_taken_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    changes = {"results": "~/out", "model.path": "~/model", "sources.a.path": "~/a.jsonl"}
    parsed = config.parse(with_changes(changes), "c")
    assert parsed.results == "/home/me/out" and parsed.model.path == "/home/me/model"
    assert parsed.sources["a"].path == "/home/me/a.jsonl"


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(PlainError) as caught:
        config.parse({"name": "X", "sources": {"a": {}}, "modle": {}}, "c")
    assert len(str(caught.value).splitlines()) == 4


def test_a_prefix_beside_a_protected_one_is_fine() -> None:
    parsed = config.parse(
        with_changes(
            {"publish": {"store": "s3", "bucket": "bkt", "prefix": "expansion_v1", "protect": ["completions/"]}}
        ),
        "c",
    )
    assert parsed.publish.prefix == "expansion_v1/"


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"chunks.size": 3}, 4),
        ({"chunks.count": 7}, 7),
        ({"sources.a.take": "all"}, 32),
        ({"sources.a.take": "all", "prompts.total": 1000}, 2),
        ({"prompts.total": 6, "chunks.size": 3}, 2),
        ({"prompts": {"total": 60, "allow_short": True}, "chunks.size": 3}, 4),
        ({"prompts": {"total": 60, "fill": ["openorca"]}, "chunks.size": 3}, 20),
    ],
)
def test_the_number_of_chunks_follows_from_the_config(changes: dict[str, Any], count: int) -> None:
    assert config.parse(with_changes(changes), "c").chunk_count() == count


def test_a_file_that_is_no_config_is_named(tmp_path: Path) -> None:
    for text, says in (("a: [", "not valid YAML"), ("- a", "must be a mapping"), ("", "must be a mapping")):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(PlainError, match=says):
            config.load_yaml(tmp_path / "c.yaml")
    with pytest.raises(PlainError, match="no such config file"):
        config.load_yaml(tmp_path / "none.yaml")


def test_a_key_that_stands_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: x\nsources:\n  a: {path: x}\n  b: {path: y, path: z}\n  a: {path: y}\nname: y\n")
    with pytest.raises(PlainError) as caught:
        config.load_yaml(path)
    assert str(caught.value).splitlines() == [
        f"{path}: {key} stands twice; the first would be lost"
        for key in ("sources.b.path (line 4)", "sources.a (line 5)", "name (line 6)")
    ]


def test_a_quoted_number_is_one_where_the_server_is_told_the_same() -> None:
    args = {"a": "180", "b": "0.85", "c": "-1", "d": "007", "e": "1e3", "f": "1.50", "g": ["1"]}
    expected = {**args, "a": 180, "b": 0.85, "c": -1}
    assert config.parse(with_changes({"servers.args": args}), "c").servers.args == expected


def test_the_committed_schema_is_the_types() -> None:
    assert files.read_json(ROOT / "config" / "schema.json") == config.schema(), "run python -m workflow_scripts.config"


def test_the_config_readme_explains_every_key() -> None:
    text = (ROOT / "config" / "README.md").read_text()
    explained = set(re.findall(r"`([a-z_.]+)`", text))
    models: list[type[config.Section]] = [*config.Section.__subclasses__(), *config.Reading.__subclasses__()]
    for model in models:
        for field in model.model_fields:
            assert any(field in key.split(".") for key in explained), (model.__name__, field)


def test_secret_words_do_not_catch_sglangs_token_flags() -> None:
    args = {"max-total-tokens": 1, "tokenizer-path": "x", "skip-tokenizer-init": True, "tokenizer-worker-num": 2}
    assert config.parse(with_changes({"servers.args": args}), "c").servers.args == args


def test_sampling_varies_by_list_weights_and_source() -> None:
    said = {
        "sampling": {
            "temperature": [0.2, 1],
            "thinking": {"values": [True, False], "weights": [3, 1]},
            "max_tokens": 100,
            "by_source": {"a": {"thinking": None, "max_tokens": [7, 300]}},
        }
    }
    sampling = config.parse(with_changes(said), "my.yaml").sampling
    assert sampling.of("a", "thinking") is None and sampling.of("a", "temperature") == [0.2, 1]
    assert sampling.of("b", "max_tokens") == 100 and sampling.tokens_of_turns() == [7, 100, 300]
    # What undoes a setting for a source is said, though it is a default.
    assert sampling.model_dump(exclude_defaults=True)["by_source"] == {"a": {"thinking": None, "max_tokens": [7, 300]}}


@pytest.mark.parametrize(
    ("sampling", "line"),
    [
        ({"thinking": {"true": 3}}, "sampling.thinking.true: unknown key; allowed here: values, weights"),
        ({"thinking": {"values": [True], "weights": [1, 2]}}, "sampling.thinking: 1 values and 2 weights"),
        ({"temperature": []}, "sampling.temperature: must not be empty"),
        ({"temperature": [0.1, 3]}, "sampling.temperature.1: 3 should be less than or equal to 2"),
        ({"by_source": {"z": {}}}, "sampling.by_source.z: no such source; there is a"),
        ({"by_source": {"a": {"n": 2}}}, "sampling.by_source.a.n: unknown key"),
        ({"template": {"enable_thinking": True}}, "sampling.template: enable_thinking is what sampling.thinking says"),
        ({"template": {"tools": "x"}}, "sampling.template: 'tools' is no variable to set here"),
    ],
)
def test_mistakes_in_sampling(sampling: dict[str, Any], line: str) -> None:
    with pytest.raises(PlainError) as caught:
        config.parse(with_changes({"sampling": sampling}), "my.yaml")
    assert any(found.startswith(f"my.yaml: {line}") for found in str(caught.value).splitlines()), caught.value


def test_a_default_sampling_says_nothing() -> None:
    assert config.Sampling().model_dump(exclude_defaults=True) == {}  # what a run is called must not change


def test_whole_conversations_need_a_tokenizer() -> None:
    with pytest.raises(PlainError, match="turns: all needs a tokenizer"):
        config.parse(with_changes({"prompts": {"turns": "all"}, "model.tokenizer": "none"}), "my.yaml")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"training.source_rows": {"z": 1}}, "training.source_rows.z: no such source; there is a"),
        ({"training.source_rows": {"a": 0}}, "training.source_rows.a: 0 should be greater than or equal to 1"),
        ({"training.longer": "left"}, "training.longer: 'left'"),
        ({"training.formats": []}, "training.formats: must not be empty"),
        ({"training.formats": ["arrow"]}, "training.formats.0: 'arrow'"),
        (
            {"training.answers": "recorded", "model.tokenizer": "none"},
            "training.answers: recorded needs a tokenizer, and model.tokenizer is none",
        ),
        (
            {"training.answers": "recorded", "publish": {"store": "s3", "bucket": "bucket"}},
            "training.answers: recorded exports off-policy rows",
        ),
    ],
)
def test_mistakes_in_training(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(PlainError) as caught:
        config.parse(with_changes(changes), "my.yaml")
    assert any(found.startswith(f"my.yaml: {line}") for found in str(caught.value).splitlines()), caught.value

"""Which files are a config's and a split's; what needs a hub is in tests/integration/test_hub.py."""

from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.errors import PlainError
from workflow_scripts.sources import layout, readers

NAMES = ["a/train-1.jsonl", "a/train-0.jsonl", "a/test.parquet", "README.md", "a/notes.txt", "a/tool.py"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["a/*", "**", "train", "a", "data_files"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
config_values = st.fixed_dictionaries(
    {"config_name": json_values},
    optional={"data_files": json_values, "data_dir": json_values, "default": json_values},
)
parts = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
endings = st.sampled_from([".jsonl", ".parquet", ".json.gz", ".csv", ".md", ""])
paths = st.builds(
    lambda folder, name, end: "/".join([*folder, name + end]), st.lists(parts, max_size=2), parts, endings
)


def test_splits_come_in_the_order_asked_and_no_file_twice() -> None:
    card = {"configs": [{"config_name": "a", "data_files": [
        {"split": "x", "path": ["a/train-*", "a/train-0.jsonl"]}, {"split": "y", "path": "a/*"},
    ]}]}  # fmt: skip
    assert layout.choose_split("o/d", NAMES, card, None, ["y", "x"]) == [
        "a/test.parquet",
        "a/train-0.jsonl",
        "a/train-1.jsonl",
    ]
    assert layout.choose_split("o/d", NAMES, card, None, ["x", "y"]) == [
        "a/train-0.jsonl",
        "a/train-1.jsonl",
        "a/test.parquet",
    ]


def test_two_default_configs() -> None:
    card = {"configs": [{"config_name": name, "data_files": "a/*", "default": True} for name in "ab"]}
    with pytest.raises(PlainError, match="several default configs"):
        layout.choose_split("o/d", NAMES, card, None, None)


def test_config_names_that_are_no_text() -> None:
    card = {"configs": [{"config_name": 2024, "data_files": "a/train*"}, {"config_name": "b", "data_files": "a/*"}]}
    assert layout.choose_split("o/d", NAMES, card, "2024", None) == ["a/train-0.jsonl", "a/train-1.jsonl"]


def test_a_card_whose_files_are_gone() -> None:
    card = {"configs": [{"config_name": "a", "data_files": "gone/*.parquet"}]}
    with pytest.raises(PlainError, match="gives the split 'train' files that it does not hold"):
        layout.choose_split("o/d", NAMES, card, None, None)


def test_many_names_are_not_all_listed() -> None:
    names = [f"{number}.jsonl" for number in range(1000)]
    with pytest.raises(PlainError, match="and 990 more") as error:
        layout.choose_files("o/d", names, ["x"])
    assert len(str(error.value)) < 500


@given(names=st.lists(paths, unique=True, max_size=8), split=st.sampled_from([None, "train", ["test", "train"]]))
def test_any_names_give_files_to_read_or_a_plain_line(names: list[str], split: str | list[str] | None) -> None:
    try:
        chosen = layout.choose_split("o/d", names, {}, None, split)
    except PlainError as error:
        assert "\n" not in str(error)
    else:
        assert chosen and set(chosen) <= set(names) and len(set(chosen)) == len(chosen)
        assert all(name.lower().endswith((*readers.PARQUET, *readers.JSON)) for name in chosen)
    assert not MemoryFileSystem.store


@given(configs=st.lists(config_values, max_size=3) | json_values, config=st.sampled_from([None, "a", "default"]))
def test_any_card_gives_files_to_read_or_a_plain_line(configs: Any, config: str | None) -> None:
    try:
        chosen = layout.choose_split("o/d", NAMES, {"configs": configs}, config, None)
    except PlainError:
        return
    assert chosen and set(chosen) <= set(NAMES)


@given(patterns=st.lists(st.text(max_size=6) | st.sampled_from(["a/*", "**", "[", "a/[!x]*"]), min_size=1, max_size=3))
def test_any_globs_give_files_to_read_or_a_plain_line(patterns: list[str]) -> None:
    try:
        chosen = layout.choose_files("o/d", NAMES, patterns)
    except PlainError:
        return
    assert chosen == sorted(set(chosen)) and set(chosen) <= set(NAMES)

"""The catalogue's entries are what the config can read, and `use` puts them under what the user says."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts import config
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import catalogue

REPOSITORIES = {
    "BAAI/Infinity-Instruct",
    "TIGER-Lab/WebInstructSub",
    "m-a-p/CodeFeedback-Filtered-Instruction",
    "m-a-p/Code-Feedback",
    "meta-math/MetaMathQA",
    "NousResearch/hermes-function-calling-v1",
    "THUDM/AgentInstruct",  # one that agent_training may be
    "nvidia/Nemotron-Post-Training-Dataset-v2",
    "theblackcat102/evol-codealpaca-v1",
    "thoughtworks/agentic-coding-trajectories",
    "togethercomputer/CoderForge-Preview",
    "anon8231489123/ShareGPT_Vicuna_unfiltered",
    "HuggingFaceH4/ultrachat_200k",
    "stingning/ultrachat",
    "OpenAssistant/oasst1",
    "OpenAssistant/oasst2",
    "sahil2801/CodeAlpaca-20k",
    "ise-uiuc/Magicoder-OSS-Instruct-75K",
    "ise-uiuc/Magicoder-Evol-Instruct-110K",
    "GAIR/lima",
    "Open-Orca/OpenOrca",
    "Salesforce/xlam-function-calling-60k",
    "glaiveai/glaive-function-calling-v2",
    "Team-ACE/ToolACE",
    "mlabonne/open-perfectblend",
    "allenai/tulu-3-sft-mixture",
    "HuggingFaceTB/smoltalk2",
    "lmsys/lmsys-chat-1m",
    "allenai/WildChat-1M",
}
ENTRIES = catalogue.load()
OF_HUB = set(catalogue.OF_HUB)


def source(values: dict[str, Any]) -> dict[str, Any]:
    """A source's values, expanded."""
    expanded: dict[str, Any] = catalogue.expand({"sources": {"a": values}}, "c")["sources"]["a"]
    return expanded


def mistakes(values: dict[str, Any]) -> list[str]:
    with pytest.raises(PlainError) as caught:
        catalogue.expand(values, "my.yaml")
    return str(caught.value).splitlines()


# --- the entries ---


def test_every_known_dataset_is_there() -> None:
    there = {entry.read.get("dataset") for entry in ENTRIES.values()}
    there |= {one.dataset for entry in ENTRIES.values() for one in entry.candidates}
    assert there >= REPOSITORIES and len(REPOSITORIES) == 29


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_what_the_config_reads(name: str) -> None:
    entry = ENTRIES[name]
    asked = {"use": name} if "dataset" in entry.read else {"use": name, "dataset": entry.candidates[0].dataset}
    values = {"name": "x", "model": {"path": "org/model"}, "sources": {name: asked}}
    read = config.parse(values, "c").sources[name]
    assert read.model_dump(exclude_unset=True) == entry.read | asked | (
        {"columns": entry.read["columns"]} if "columns" in entry.read else {}
    )
    assert read.shape != "auto" or entry.candidates
    assert read.revision is None or len(read.revision) == 40


@pytest.mark.parametrize("name", ENTRIES)
def test_overlaps_name_each_other(name: str) -> None:
    overlaps = ENTRIES[name].overlaps
    assert name not in overlaps and len(set(overlaps)) == len(overlaps)
    assert all(name in ENTRIES[other].overlaps for other in overlaps)


def test_no_two_entries_read_the_same() -> None:
    reads = [str(sorted(entry.read.items())) for entry in ENTRIES.values()]
    assert len(set(reads)) == len(reads)


def test_coderforge_leaves_out_the_split_that_repeats_the_others() -> None:
    assert ENTRIES["coderforge"].read["split"] == ["SWE_Rebench", "SWE_Smith", "R2E_Gym"]


# --- use ---


def test_an_entrys_values_hold_where_nothing_is_said() -> None:
    found = source({"use": "infinity_instruct", "take": 5, "split": "other"})
    assert found == {
        "use": "infinity_instruct",
        "take": 5,
        "dataset": "BAAI/Infinity-Instruct",
        "config": "0625",
        "split": "other",
        "shape": "sharegpt",
    }


def test_columns_and_where_merge() -> None:
    found = source({"use": "glaive_v2", "columns": {"prompt": "text", "id": "n"}, "where": {"lang": "en"}})
    assert found["columns"] == {"prompt": "text", "system": "system", "id": "n"}
    assert found["where"] == {"lang": "en"}


def test_a_local_copy_stands_in_for_the_hub() -> None:
    found = source({"use": "glaive_v2", "path": "copy.json"})
    assert not OF_HUB & set(found)
    assert found["shape"] == "transcript_string" and found["columns"]["prompt"] == "chat"


def test_files_replace_config_and_split_and_the_other_way_round() -> None:
    found = source({"use": "infinity_instruct", "files": ["0625/*.parquet"]})
    assert "config" not in found and "split" not in found
    assert "files" not in source({"use": "sharegpt", "split": "train"})


def test_a_mirror_has_commits_of_its_own() -> None:
    assert "revision" in source({"use": "glaive_v2", "dataset": "glaiveai/glaive-function-calling-v2"})
    found = source({"use": "glaive_v2", "dataset": "me/glaive"})
    assert found["dataset"] == "me/glaive" and "revision" not in found and found["shape"] == "transcript_string"


def test_lists_of_names_become_mappings_in_order() -> None:
    found = source({"use": "xlam", "substitutes": ["toolace", "glaive_v2"]})
    assert list(found["substitutes"]) == ["toolace", "glaive_v2"]
    assert found["substitutes"]["toolace"] == ENTRIES["toolace"].read
    assert catalogue.expand({"prompts": {"total": 5, "fill": ["openorca"]}}, "c") == {
        "prompts": {"total": 5, "fill": {"openorca": ENTRIES["openorca"].read}}
    }


def test_a_mapping_of_stand_ins_uses_entries_too() -> None:
    german = {"use": "openorca", "where": {"language": "de"}}
    found = source({"use": "xlam", "substitutes": {"german": german, "mine": {"dataset": "me/mine"}}})["substitutes"]
    assert found == {
        "german": ENTRIES["openorca"].read | {"where": {"language": "de"}},
        "mine": {"dataset": "me/mine"},
    }
    expanded = catalogue.expand({"prompts": {"total": 5, "fill": {"german": german}}}, "c")
    assert expanded["prompts"]["fill"] == {"german": found["german"]}
    assert catalogue.expand(expanded, "c") == expanded
    (line,) = mistakes({"prompts": {"fill": {"german": {"use": "openorka"}}}})
    assert line.startswith(
        "my.yaml: prompts.fill.german.use: 'openorka' is not in the catalogue; did you mean openorca"
    )


def test_a_source_without_use_has_substitutes_too() -> None:
    found = source({"path": "a.jsonl", "substitutes": ["openorca"]})
    assert found == {"path": "a.jsonl", "substitutes": {"openorca": ENTRIES["openorca"].read}}


def test_what_is_expanded_is_not_the_catalogues_own() -> None:
    before = ENTRIES["glaive_v2"].model_dump()
    found = source({"use": "glaive_v2", "substitutes": ["coderforge"]})
    found["columns"]["prompt"] = "changed"
    found["substitutes"]["coderforge"]["split"].append("changed")
    assert ENTRIES["glaive_v2"].model_dump() == before
    assert "changed" not in ENTRIES["coderforge"].read["split"]


# --- mistakes ---


def test_every_unknown_name_is_one_line() -> None:
    lines = mistakes(
        {
            "sources": {
                "a": {"use": "infinty"},
                "b": {"use": "openorca", "substitutes": ["toolace", "tool_ace"]},
                "c": {"use": "BAAI/infinity-instruct"},
                "d": {"use": "qqqqqq"},
            },
            "prompts": {"fill": ["Open-Orca"]},
        }
    )
    how = "`uv run python -m workflow_scripts.sources.catalogue` lists what is"
    meant = "infinity_instruct or infinity_instruct_gen or infinity_instruct_7m"
    assert lines[0].startswith("my.yaml: sources.a.use: 'infinty' is not in the catalogue; did you mean infinity_inst")
    assert (
        lines[1]
        == f"my.yaml: sources.c.use: 'BAAI/infinity-instruct' is not in the catalogue; did you mean {meant}? {how}"
    )
    assert lines[2] == f"my.yaml: sources.d.use: 'qqqqqq' is not in the catalogue; {how}"
    assert (
        lines[3] == f"my.yaml: sources.b.substitutes: 'tool_ace' is not in the catalogue; did you mean toolace? {how}"
    )
    assert lines[4].startswith("my.yaml: prompts.fill: 'Open-Orca' is not in the catalogue; did you mean openorca")
    assert len(lines) == 5


def test_a_dataset_that_isnt_known_asks_which_one_is_meant() -> None:
    (line,) = mistakes({"sources": {"a": {"use": "agent_training", "take": 553}}})
    assert line.startswith("my.yaml: sources.a.use: which dataset agent_training is isn't known; it could be THUDM/")
    assert line.endswith("; say it with `dataset:` beside `use:`")
    assert all(one.dataset in line for one in ENTRIES["agent_training"].candidates)
    (line,) = mistakes({"prompts": {"fill": ["agent_training"]}})
    assert line.endswith("; write a mapping, agent_training: {dataset: ...}, not a list")
    assert source({"use": "agent_training", "dataset": "me/mine"})["shape"] == "auto"
    assert source({"use": "agent_training", "path": "mine.jsonl"})["shape"] == "auto"


@pytest.mark.parametrize(
    "values",
    [
        {"sources": ["a"]},
        {"sources": {"a": 3, "b": None, 4: {"use": 3}, "c": {"use": ["openorca"]}}},
        {"sources": {"a": {"path": "x", "substitutes": 5}, "b": {"path": "x", "substitutes": ["openorca", 5]}}},
        {"prompts": {"fill": None}, "sources": None},
        {"prompts": ["fill"]},
        {},
    ],
)
def test_wrong_types_are_left_to_the_typed_config(values: dict[str, Any]) -> None:
    assert catalogue.expand(values, "c") == values
    with pytest.raises(PlainError):
        config.parse({"name": "x", "model": {"path": "org/model"}} | values, "c")


# --- properties ---

NAMES = st.sampled_from([name for name, entry in ENTRIES.items() if "dataset" in entry.read])
TEXT = st.sampled_from(["en", "train", "x", "me/mine"])
SOURCES = st.fixed_dictionaries(
    {"use": NAMES},
    optional={
        "path": TEXT,
        "dataset": TEXT,
        "config": TEXT | st.none(),
        "split": TEXT | st.lists(TEXT) | st.none(),
        "revision": TEXT,
        "files": st.lists(TEXT),
        "columns": st.dictionaries(st.sampled_from(["prompt", "id"]), TEXT),
        "where": st.dictionaries(TEXT, TEXT),
        "substitutes": st.lists(NAMES, unique=True),
        "take": st.integers(1, 9),
    },
)


@given(SOURCES, st.lists(NAMES, unique=True))
def test_expanded_values_expand_to_themselves(values: dict[str, Any], fill: list[str]) -> None:
    once = catalogue.expand({"sources": {"a": values}, "prompts": {"fill": fill}}, "c")
    assert catalogue.expand(once, "c") == once
    found = once["sources"]["a"]
    assert all(found[key] == value for key, value in values.items() if key not in ("columns", "where", "substitutes"))
    assert list(once["prompts"]["fill"]) == fill


@given(NAMES, st.sampled_from(["config", "split", "files", "path", "dataset"]))
def test_one_key_of_the_users_leaves_a_place_that_the_config_takes(name: str, key: str) -> None:
    """As run.yaml is written and read again by every job."""
    given_value = {"files": ["a"], "dataset": "me/mine"}.get(key, "a")
    values = {"name": "x", "model": {"path": "org/model"}, "sources": {"a": {"use": name, key: given_value}}}
    parsed = config.parse(values, "c")
    assert getattr(parsed.sources["a"], key) == given_value
    assert config.parse(parsed.model_dump(exclude_unset=True), "run.yaml") == parsed


# --- as a command ---


def run_main(monkeypatch: pytest.MonkeyPatch, *args: str) -> None:
    monkeypatch.setattr(sys, "argv", ["catalogue", *args])
    catalogue.main()


def test_the_command_lists_all_and_shows_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(ENTRIES)
    assert lines[1].split() == ["infinity_instruct", "659,808", "auto", "cc-by-sa-4.0"]
    run_main(monkeypatch, "xlam")
    shown = capsys.readouterr().out
    assert "dataset: Salesforce/xlam-function-calling-60k" in shown and "quirks:" in shown
    with pytest.raises(PlainError, match=r"^'xlm' is not in the catalogue; did you mean xlam"):
        run_main(monkeypatch, "xlm")


def test_a_name_of_an_own_source_means_that_source() -> None:
    own = {"path": "mine.jsonl", "shape": "messages", "take": 5}
    values = {"sources": {"openorca": own, "b": {"use": "toolace", "substitutes": ["openorca", "xlam"]}}}
    expanded = catalogue.expand(values | {"prompts": {"fill": ["openorca"]}}, "my.yaml")
    reading = {"path": "mine.jsonl", "shape": "messages"}
    assert expanded["sources"]["b"]["substitutes"] == {"openorca": reading, "xlam": ENTRIES["xlam"].read}
    assert expanded["prompts"]["fill"] == {"openorca": reading}
    assert catalogue.expand(expanded, "my.yaml") == expanded

"""Earlier prompts are known by first_id and by text, from every kind of file."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts.exclude import Exclude, read_earlier
from workflow_scripts.sources.prompt_ids import identify

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def asked(text: str, *more: Any) -> list[Any]:
    return [{"role": "user", "content": text}, *more]


def answer(text: str = "Old.") -> dict[str, str]:
    return {"role": "assistant", "content": text}


def candidates(*conversations: list[Any], tools: Any = None) -> pl.DataFrame:
    ids = [identify(messages, tools) for messages in conversations]
    return pl.DataFrame({"first_id": [one.first_id for one in ids], "dedupe_key": [one.dedupe_key for one in ids]})


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dropped(path: Path, *conversations: list[Any], by_text: bool = True, tools: Any = None) -> dict[int, str | None]:
    found = Exclude([(path.name, read_earlier(path, path.name))], by_text=by_text)
    return {at: hit.repeats for at, hit in found.check(candidates(*conversations, tools=tools)).items()}


def test_manifests_name_ids_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "manifest.parquet"
    frame = candidates(asked("One?"), asked("Two?")).with_columns(source=pl.lit("a"))
    frame.write_parquet(path)
    assert dropped(path, asked("Three?"), asked("Two?"), asked("one?"), asked("two?  ")) == {
        1: "manifest.parquet:1",
        2: "manifest.parquet:0",
        3: "manifest.parquet:1",
    }
    assert dropped(path, asked("one?"), asked("One?"), by_text=False) == {1: "manifest.parquet:0"}
    frame.drop("dedupe_key").write_parquet(path)
    assert dropped(path, asked("one?"), asked("One?")) == {1: "manifest.parquet:0"}


def test_chunks_of_prompts_and_completions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "00000.jsonl.zst"
    rows = [
        {"prompt_id": "0" * 64, "first_id": identify(messages, tools).first_id, "messages": messages, "tools": tools}
        for messages, tools in ((asked("One?", answer()), None), (asked("Two?"), TOOLS))
    ]
    files.write_jsonl_zst(path, rows)
    assert dropped(path, asked("ONE?", answer("Other.")), asked("Two?")) == {0: "00000.jsonl.zst:0"}
    assert dropped(path, asked("Two?"), asked("two?"), tools=TOOLS) == {0: "00000.jsonl.zst:1", 1: "00000.jsonl.zst:1"}


def test_an_empty_chunk_excludes_nothing(tmp_path: Path) -> None:
    files.write_jsonl_zst(tmp_path / "00000.jsonl.zst", [])
    assert dropped(tmp_path / "00000.jsonl.zst", asked("One?")) == {}


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "Old."}]},
        {"messages": asked("One?", answer())},
        {"messages": asked("One?")},
        {"prompt": "One?"},
        {"prompt": "One?", "response": "Old."},
        {"instruction": "One?", "input": "", "output": "Old."},
    ],
)
def test_rows_of_datasets_are_normalized_as_sources_are(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write_lines(tmp_path / "old.jsonl", [row, row])
    assert dropped(path, asked("Two?"), asked("one?"), asked("One?", answer("New."))) == {
        1: "old.jsonl:0",
        2: "old.jsonl:0",
    }
    pl.DataFrame([row]).write_parquet(tmp_path / "old.parquet")
    assert dropped(tmp_path / "old.parquet", asked("One?")) == {0: "old.parquet:0"}


def test_rows_that_are_no_prompts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "One?"}, {"prompt": " "}, *({"prompt": f"{n}?"} for n in range(3))]
    path = write_lines(tmp_path / "old.jsonl", rows)
    assert dropped(path, asked("2?")) == {0: "old.jsonl:4"}
    assert "old.jsonl: 1 rows are no prompts, and exclude nothing (row 1: " in capsys.readouterr().out
    write_lines(path, [*rows, {"text": "Three?"}])
    with pytest.raises(PlainError, match=r"old\.jsonl: 2 rows are no prompts.*; only 4 are, read by shape prompt_resp"):
        read_earlier(path, path.name)


@pytest.mark.parametrize("first_ids", [["7", "8"], [[1], [2]], [b"7", b"8"], [None, "a"]])
def test_a_column_first_id_of_others_is_no_id(tmp_path: Path, first_ids: list[Any]) -> None:
    path = tmp_path / "old.parquet"
    pl.DataFrame({"first_id": first_ids, "prompt": ["One?", "Two?"]}).write_parquet(path)
    assert dropped(path, asked("One?"), asked("Two?")) == {0: "old.parquet:0", 1: "old.parquet:1"}
    pl.DataFrame({"first_id": ["a" * 64, "7", None]}).write_parquet(path)
    with pytest.raises(PlainError, match="row 1 names no first_id"):
        read_earlier(path, path.name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"score": 1}\n', r"old\.jsonl: neither first_id nor a conversation was found.*\n  `score`: a number"),
        ('{"prompt": " "}\n{"prompt": ""}\n', "neither first_id nor a conversation|holds no prompts"),
        ("{half\n", r"old\.jsonl: no row can be read \(the first: malformed_json"),
        (json.dumps({"first_id": "a" * 64}) + "\n{half\n", r"row 1 can't be read \(malformed_json"),
        ('{"prompt_id": "a", "source": "b", "reason": "duplicate"}\n', "did not take.*name the run's manifest"),
        (json.dumps({"first_id": "a" * 64}) + "\n{}\n", "row 1 names no first_id"),
    ],
)
def test_a_file_without_prompts_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(text)
    with pytest.raises(PlainError, match=message):
        read_earlier(path, path.name)


def test_a_damaged_manifest_is_said(tmp_path: Path) -> None:
    path = tmp_path / "manifest.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(PlainError, match=r"manifest\.parquet"):
        read_earlier(path, path.name)


texts = st.lists(st.text("abAB ", min_size=1, max_size=4), max_size=8)


@given(earlier=texts, now=texts, by_text=st.booleans())
def test_exactly_the_known_are_dropped(earlier: list[str], now: list[str], by_text: bool) -> None:
    known = (
        candidates(*map(asked, earlier))
        if earlier
        else pl.DataFrame(schema=dict.fromkeys(("first_id", "dedupe_key"), pl.String))
    )
    frame = known.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))
    offered = candidates(*map(asked, now)) if now else known.clear()
    hits = Exclude([("f", frame)], by_text=by_text).check(offered)

    def plain(text: str) -> str:
        return " ".join(text.lower().split()) if by_text else text

    kept = [plain(text) for text in earlier]
    assert set(hits) == {at for at, text in enumerate(now) if plain(text) in kept}
    for at, hit in hits.items():
        assert hit.repeats is not None and plain(earlier[int(hit.repeats.removeprefix("f:"))]) == plain(now[at])

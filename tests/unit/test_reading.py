"""One pass over a source: auto, where, sample, limits, and what stats.json counts."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflow_scripts import config, files
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import json_rows, reading
from workflow_scripts.sources.normalize import SourceFile, build_shard
from workflow_scripts.sources.readers import NamedFile, count_rows, read_source


def good(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"Q{n}", "response": f"A{n}", **more} for n in range(count)]


def write(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


class Shard:
    """The shard that a source of these files gives."""

    def __init__(self, tmp_path: Path, *paths: Path, **values: Any) -> None:
        source = config.Source.model_validate({"path": "x", "shape": "auto", **values})
        self.stats = build_shard("demo", source, [SourceFile.of(path) for path in paths], tmp_path / "shard")
        self.prompts: list[dict[str, Any]] = pq.read_table(tmp_path / "shard" / "prompts.parquet").to_pylist()
        self.rejects = list(files.read_jsonl_zst(tmp_path / "shard" / "rejects.jsonl.zst"))

    @property
    def asked(self) -> list[str]:
        return [json.loads(row["messages"])[0]["content"] for row in self.prompts]


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.parquet"])
def test_auto_is_said_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    shard = Shard(tmp_path, write(tmp_path / name, good(3, lang="en")))
    assert (shard.stats["shape"], shard.stats["prompts"], shard.stats["languages"]) == ("prompt_response", 3, {"en": 3})
    assert (
        "source demo: shape prompt_response: columns `prompt`, `response`; `prompt` is text in 3 of 3 rows"
        in capsys.readouterr().out.splitlines()
    )


def test_auto_looks_past_files_without_rows(tmp_path: Path) -> None:
    empty, bad = write(tmp_path / "a.jsonl", []), write(tmp_path / "b.jsonl", ["{", "[]"])
    shard = Shard(tmp_path, empty, bad, write(tmp_path / "c.jsonl", good(10)))
    assert shard.stats["shape"] == "prompt_response"
    assert [row["source_row"] for row in shard.prompts] == list(range(2, 12))
    assert "languages" not in shard.stats


def test_auto_where_nothing_fits(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [{"title": "a\x1b[31m", "n": 1}] * 2)
    with pytest.raises(PlainError) as caught:
        Shard(tmp_path, file)
    assert str(caught.value).splitlines() == [
        "source demo: no shape fits its first rows. Its columns hold",
        "  `title`: text (2)",
        "  `n`: a number (2)",
        "Shapes: messages, sharegpt, alternating_strings, prompt_response, prompt_response_system, alpaca, "
        "messages_json_string, transcript_string, tools_query_answers, message_tree. Say which in sources.demo.shape, "
        "and in sources.demo.columns which column holds what",
    ]
    with pytest.raises(PlainError, match=r"no row can be read, .* \(the first: y\.jsonl, row 0: malformed_json: "):
        Shard(tmp_path, write(tmp_path / "y.jsonl", ["{", "["]))
    with pytest.raises(PlainError, match=r"holds no rows$"):
        Shard(tmp_path, write(tmp_path / "z.jsonl", []))
    with pytest.raises(PlainError, match="no shape fits"):
        Shard(tmp_path, write(tmp_path / "w.jsonl", [{}]))


def test_auto_with_a_column_that_the_shape_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(PlainError, match="no shape fits"):
        Shard(tmp_path, write(tmp_path / "x.jsonl", good(3)), columns={"prompt": "ask"})


ROWS = [
    *good(2, lang="en", good=True, reward=1.0),
    *good(2, lang="de", good=True, reward=0.5),
    {"prompt": "Q9"},
    *good(1, lang="en", good=False, reward=True),
]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"lang": "en"}, [0, 1, 5]),
        ({"lang": ["en", None]}, [0, 1, 4, 5]),
        ({"lang": "en", "good": True}, [0, 1]),
        ({"good": 1}, []),
        ({"reward": 1}, [0, 1]),
        ({"reward": [0.5, True]}, [2, 3, 5]),
    ],
)
def test_where(tmp_path: Path, where: dict[str, Any], kept: list[int]) -> None:
    file = write(tmp_path / "x.jsonl", ROWS)
    if not kept:
        with pytest.raises(PlainError, match=r"sources\.demo\.where keeps none of 6 rows \(the first: filtered: "):
            Shard(tmp_path, file, where=where)
        return
    shard = Shard(tmp_path, file, where=where)
    assert [row["source_row"] for row in shard.prompts] == kept
    assert shard.stats["rejects"] == {"filtered": len(ROWS) - len(kept)}
    assert shard.rejects[0]["reason"].startswith("filtered: ")


def test_where_reads_its_columns_from_parquet(tmp_path: Path) -> None:
    rows = [*good(2, lang="en", reward=1.0), *good(2, lang="de", reward=1.0), {"prompt": "Q", "reward": 0.5}]
    file = write(tmp_path / "x.parquet", rows)
    shard = Shard(tmp_path, file, shape="prompt_response", where={"lang": ["en", None], "reward": [1, 0.5]})
    assert [row["source_row"] for row in shard.prompts] == [0, 1, 4]


def test_a_field_of_a_column_can_be_asked_for(tmp_path: Path) -> None:
    rows = [{**row, "about": {"lang": "en" if n % 2 else "de"}} for n, row in enumerate(good(6))]
    for name in ("x.jsonl", "x.parquet"):
        shard = Shard(tmp_path / f"of {name}", write(tmp_path / name, rows), where={"about.lang": "en"})
        assert shard.asked == ["Q1", "Q3", "Q5"]


def test_filtered_rows_do_not_hide_bad_ones(tmp_path: Path) -> None:
    rows = [*good(90, keep=False), *good(5, keep=True), *[{"prompt": "", "keep": True}] * 5]
    with pytest.raises(PlainError, match="5 of 10 rows are no prompts"):
        Shard(tmp_path, write(tmp_path / "x.jsonl", rows), where={"keep": True})
    shard = Shard(tmp_path, write(tmp_path / "x.jsonl", rows), where={"keep": True}, max_rejects=0.5)
    assert shard.stats["rejects"] == {"empty_prompt": 5, "filtered": 90}


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_column_of_where_that_no_row_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        PlainError, match="no row has the column langauge, which the config names; columns found: prompt"
    ):
        Shard(tmp_path, write(tmp_path / name, good(3)), where={"langauge": "en"})


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.parquet"])
def test_sample(tmp_path: Path, name: str) -> None:
    two = write(tmp_path / f"two-{name}", good(6))
    shard = Shard(tmp_path, write(tmp_path / name, good(4)), two, sample=5)
    assert [row["source_row"] for row in shard.prompts] == [1, 3, 5, 7, 9]
    assert shard.asked == ["Q1", "Q3", "Q1", "Q3", "Q5"]
    assert (shard.stats["rows"], shard.stats["rows_in_source"]) == (5, 10)


def test_a_sample_that_is_no_less(tmp_path: Path) -> None:
    shard = Shard(tmp_path, write(tmp_path / "x.jsonl", good(4)), sample=4)
    assert shard.stats["rows"] == 4
    assert "rows_in_source" not in shard.stats


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_rows_are_counted_as_they_are_read(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, [*good(3), {"prompt": "x" * 5000}, {}])
    if name == "x.jsonl":
        file.write_text("\n" + file.read_text() + "  \n{torn")
    for limit in (100, 1 << 20):
        assert count_rows(file, limit) == len(list(read_source([NamedFile(file, file.name)], None, limit)))


def test_max_row_bytes(tmp_path: Path) -> None:
    rows = [*good(9), {"prompt": "x" * 1000, "response": "A"}]
    for name in ("x.jsonl", "x.parquet"):
        shard = Shard(tmp_path / f"of {name}", write(tmp_path / name, rows), max_row_bytes=500)
        assert (shard.stats["prompts"], shard.stats["rejects"]) == (9, {"too_large": 1})
        shard = Shard(tmp_path / f"all of {name}", write(tmp_path / name, rows))
        assert shard.stats["prompts"] == 10


def test_files_and_rows_that_differ_in_their_types(tmp_path: Path) -> None:
    """What a typed table could not hold comes through exact, or is rejected alone."""
    parts = [{"type": "text", "text": "2024-01-01"}, {"type": "text", "text": " 00:00"}]
    one = write(
        tmp_path / "1.jsonl",
        [
            {"id": None, "prompt": "2023-05-06", "response": None},
            {"id": 2**70, "prompt": parts, "response": "7", "extra": {"a": [1]}},
            '{"prompt":"first","id":1,"prompt":"last"}',
            {"id": "x", "prompt": 7},
            {"prompt": "1.0", "response": ["A"]},
            '{"prompt":"\\ud83d"}',
            {"prompt": "\u2028\x00é\U0001f600\r\n"},
        ],
    )
    two = write(tmp_path / "2.parquet", [{"prompt": "2023-05-06T00:00:00", "id": 5, "response": "A"}])
    three = write(tmp_path / "3.json", [{"prompt": "null", "id": 1.5, "more": None}])
    torn = tmp_path / "4.jsonl"
    torn.write_bytes(b'\xef\xbb\xbf{"prompt":"BOM","id":true}\r\n{"prompt":"\xff"}\r\n\r\n{"prompt":"torn')
    shard = Shard(tmp_path, one, two, three, torn, shape="prompt_response", max_rejects=1.0)
    assert list(zip(shard.asked, [row["source_id"] for row in shard.prompts], strict=True)) == [
        ("2023-05-06", "1.jsonl:0"),
        ("2024-01-01 00:00", str(2**70)),
        ("last", "1"),
        ("1.0", "1.jsonl:4"),
        ("\u2028\x00é\U0001f600\r\n", "1.jsonl:6"),
        ("2023-05-06T00:00:00", "5"),
        ("null", "3.json:0"),
        ("BOM", "4.jsonl:0"),
    ]
    assert [(reject["file"], reject["row"], reject["reason"].split(":")[0]) for reject in shard.rejects] == [
        ("1.jsonl", 3, "not_text"),
        ("1.jsonl", 5, "lone_surrogate"),
        ("4.jsonl", 1, "invalid_utf8"),
        ("4.jsonl", 3, "malformed_json"),
    ]


def tree(count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for n in range(count):
        rows.append({"message_id": f"r{n}", "parent_id": None, "text": f"Q{n}", "role": "prompter", "lang": "en"})
        rows += [
            {"message_id": f"{n}-{m}", "parent_id": f"r{n}", "text": "A", "role": "assistant", "lang": "en", "rank": m}
            for m in range(9)
        ]
    return rows


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_trees(tmp_path: Path, name: str) -> None:
    rows = tree(3)
    rows[20]["lang"] = "de"
    shard = Shard(tmp_path, write(tmp_path / name, rows), where={"lang": "en"})
    assert [(row["source_id"], row["source_row"]) for row in shard.prompts] == [("r0", 0), ("r1", 10)]
    assert shard.stats["rejects"] == {"filtered": 1, "part_of_a_tree": 27}
    assert (shard.stats["rows"], shard.stats["roles"]) == (30, {"assistant": 2, "prompter": 2})
    assert [reject["row"] for reject in shard.rejects] == [*range(1, 10), *range(11, 30)]


def test_a_sample_of_trees_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlainError, match=r"sources\.demo\.sample: rows of the shape message_tree belong together"):
        Shard(tmp_path, write(tmp_path / "x.jsonl", tree(3)), shape="auto", sample=3)


def test_unread_calls_are_counted(tmp_path: Path) -> None:
    rows = [{"query": f"Q{n}", "tools": '[{"name": "f"}]', "answers": "[{" if n == 1 else "[]"} for n in range(3)]
    shard = Shard(tmp_path, write(tmp_path / "x.jsonl", rows), shape="tools_query_answers")
    assert (shard.stats["prompts"], shard.stats["malformed_calls"]) == (3, 1)


def test_hopeless_reading_ends_early_but_not_for_filtered_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HOPELESS_ROWS", 10)
    monkeypatch.setattr(json_rows, "BATCH_ROWS", 5)
    rows = [*good(50, keep=False), *good(3, keep=True)]
    assert Shard(tmp_path, write(tmp_path / "x.jsonl", rows), where={"keep": True}).stats["prompts"] == 3
    late = write(tmp_path / "y.jsonl", [*["x"] * 10, *good(1000)])
    with pytest.raises(PlainError, match="10 of 10 rows") as caught:
        Shard(tmp_path / "y", late, shape="prompt_response", max_rejects=0.99)
    assert str(caught.value).endswith(
        "The reading was ended after 10 rows without one prompt. Where later rows are good, "
        "sources.demo.max_rejects: 1 reads on"
    )
    assert Shard(tmp_path / "y", late, shape="prompt_response", max_rejects=1).stats["prompts"] == 1000

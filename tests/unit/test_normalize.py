"""A source to its shard: every row accounted for, the same bytes every time, whole or absent."""

import json
import threading
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_scripts import config, files
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts.candidates import source_shard
from workflow_scripts.run import Run
from workflow_scripts.sources import json_rows, normalize, reading, shard
from workflow_scripts.sources.normalize import SourceFile, build_shard
from workflow_scripts.sources.readers import resolve

DEMO = Path(__file__).parents[2] / "config" / "demo"


def source(shape: config.Shape | Literal["auto"] = "prompt_response", **values: Any) -> config.Source:
    return config.Source.model_validate({"path": "x", "shape": shape, **values})


def write(path: Path, rows: list[Any]) -> SourceFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return SourceFile.of(path)


def prompts(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "prompts.parquet").to_pylist()
    return rows


def good(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"Q{n}", "response": f"A{n}"} for n in range(count)]


def test_a_shard(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", [{"prompt": "Q0", "response": "A0", "id": "x"}, "{", {"prompt": "Q2"}])
    two = write(tmp_path / "two.jsonl", [*good(6), {"prompt": " "}])
    folder = tmp_path / "sources" / "demo-0123"
    stats = build_shard("demo", source(), [one, two], folder)
    rows = prompts(folder)
    assert [row["row"] for row in rows] == list(range(8))
    assert [row["source_row"] for row in rows] == [0, 2, 3, 4, 5, 6, 7, 8]
    assert [row["source_id"] for row in rows] == ["x", "one.jsonl:2", *(f"two.jsonl:{n}" for n in range(6))]
    assert json.loads(rows[0]["messages"]) == [
        {"role": "user", "content": "Q0"},
        {"role": "assistant", "content": "A0"},
    ]
    assert (rows[0]["tools"], rows[0]["meta"]) == (None, "{}")
    assert rows[0]["first_id"] == rows[0]["all_id"] == rows[2]["first_id"] != rows[1]["first_id"]
    assert list(files.read_jsonl_zst(folder / "rejects.jsonl.zst")) == [
        {
            "file": "one.jsonl",
            "row": 1,
            "reason": "malformed_json: unexpected end of data: line 1 column 2 (char 1)",
            "excerpt": "{",
        },
        {"file": "two.jsonl", "row": 6, "reason": "empty_prompt", "excerpt": '{"prompt":" "}'},
    ]
    assert stats == files.read_json(folder / "stats.json")
    assert {key: stats[key] for key in ("rows", "prompts", "rejects", "columns", "roles", "bytes")} == {
        "rows": 10,
        "prompts": 8,
        "rejects": {"empty_prompt": 1, "malformed_json": 1},
        "columns": ["id", "prompt", "response"],
        "roles": {},
        "bytes": one.bytes + two.bytes,
    }
    assert stats["characters"] == dict.fromkeys(("p0", "p10", "p25", "p50", "p75", "p90", "p99", "p100"), 2)
    assert stats["prompts_sha256"] == files.sha256_file(folder / "prompts.parquet")
    assert sorted(path.name for path in folder.iterdir()) == ["prompts.parquet", "rejects.jsonl.zst", "stats.json"]


def test_the_same_source_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "GROUP_ROWS", 7)
    rows = [*good(50), {"prompt": None}, "x"]
    names = ("prompts.parquet", "rejects.jsonl.zst")
    made = []
    for place in ("here", "elsewhere"):
        folder = tmp_path / place / "shard"
        build_shard("demo", source(), [write(tmp_path / place / "data" / "x.jsonl", rows)], folder)
        made.append([(folder / name).read_bytes() for name in names])
        assert pq.ParquetFile(folder / "prompts.parquet").num_row_groups == 8
        assert [row["row"] for row in prompts(folder)] == list(range(50))
    assert made[0] == made[1]


cells = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=2)
lines = st.dictionaries(st.sampled_from(["prompt", "response", "id"]), cells) | st.sampled_from(
    ["{", "[]", "\x00", " "]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(rows=st.lists(lines, min_size=1))
def test_rows_are_prompts_and_rejects(rows: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("rows")
    file = write(tmp_path / "x.jsonl", [{"prompt": "Q"}, *rows])
    stats = build_shard("demo", source(max_rejects=1.0), [file], tmp_path / "shard")
    rejects = list(files.read_jsonl_zst(tmp_path / "shard" / "rejects.jsonl.zst"))
    made = prompts(tmp_path / "shard")
    not_blank = [number for number, row in enumerate([{}, *rows]) if row != " "]
    assert stats["rows"] == stats["prompts"] + sum(stats["rejects"].values()) == len(not_blank)
    assert (stats["prompts"], sum(stats["rejects"].values())) == (len(made), len(rejects))
    by_place = [not_blank[row["source_row"]] for row in made] + [reject["row"] for reject in rejects]
    assert sorted(by_place) == not_blank


def test_a_wrong_shape_is_said_with_what_was_found(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [*good(7), *({"ask\x1b[31m": n} for n in range(3))])
    with pytest.raises(PlainError) as caught:
        build_shard("demo", source(), [file], tmp_path / "shard")
    assert str(caught.value).splitlines() == [
        "source demo: 3 of 10 rows are no prompts under the shape prompt_response; above 20% that is a wrong shape or "
        "column, not bad rows",
        "  3 x missing_column: no prompt or question or instruction or query or problem (first: x.jsonl, row 7)",
        "columns found: ask [31m, prompt, response",
        'an example: {"ask\\u001b[31m":0}',
        "Check sources.demo.shape and sources.demo.columns",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".shard.lock", "x.jsonl"]


def test_a_fifth_of_bad_rows_is_taken(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [*good(8), "x", "y"])
    assert build_shard("demo", source(), [file], tmp_path / "shard")["prompts"] == 8


def test_hopeless_reading_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HOPELESS_ROWS", 10)
    monkeypatch.setattr(json_rows, "BATCH_ROWS", 5)
    file = write(tmp_path / "x.jsonl", [*["x"] * 10, *good(1000)])
    with pytest.raises(PlainError, match="10 of 10 rows"):
        build_shard("demo", source(), [file], tmp_path / "shard")


@pytest.mark.parametrize(
    ("shape", "columns", "rows", "message"),
    [
        ("prompt_response", {}, [], "holds no rows"),
        ("prompt_response", {"id": "key"}, good(3), "no row has the column key, .*columns found: prompt, response"),
    ],
)
def test_what_else_is_wrong_with_a_source(
    tmp_path: Path, shape: config.Shape, columns: dict[str, str], rows: list[Any], message: str
) -> None:
    file = write(tmp_path / "x.jsonl", rows)
    with pytest.raises(PlainError, match=message):
        build_shard("demo", source(shape, columns=columns), [file], tmp_path / "shard")
    assert not (tmp_path / "shard").exists()


def test_a_whole_shard_is_reused_and_a_damaged_one_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shard"
    file = write(tmp_path / "x.jsonl", good(9))
    stats = build_shard("demo", source(), [file], folder)
    data = (folder / "prompts.parquet").read_bytes()
    file.path.unlink()
    assert build_shard("demo", source(), [file], folder) == stats
    assert capsys.readouterr().out.splitlines()[-1] == f"source demo: 9 prompts are in {folder} already"

    def damage() -> None:
        (folder / "prompts.parquet").write_bytes(data[:100] + b"\x00" + data[101:])

    for harm in (damage, (folder / "stats.json").unlink, (folder / "rejects.jsonl.zst").unlink):
        write(file.path, good(9))
        harm()
        again = build_shard("demo", source(), [file], folder)
        assert {**again, "seconds": 0} == {**stats, "seconds": 0}
        assert (folder / "prompts.parquet").read_bytes() == data


def test_what_a_killed_build_left_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".shard.tmp").mkdir()
    (tmp_path / ".shard.tmp" / "stats.json").write_text("{}")
    file = write(tmp_path / "x.jsonl", good(3))
    build_shard("demo", source(), [file], tmp_path / "shard")
    assert len(prompts(tmp_path / "shard")) == 3
    assert not (tmp_path / ".shard.tmp").exists()


def test_another_builder_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shard"
    file = write(tmp_path / "x.jsonl", good(3))
    waiting = threading.Event()
    monkeypatch.setattr(normalize, "say", lambda text: waiting.set() if "another run is reading it" in text else None)
    builder = threading.Thread(target=build_shard, args=("demo", source(), [file], folder))
    with files.file_lock(tmp_path / ".shard.lock"):
        builder.start()
        assert waiting.wait(timeout=60)
        assert not folder.exists()
    builder.join(timeout=60)
    assert len(prompts(folder)) == 3


@pytest.mark.parametrize("change", ["size", "content", "gone"])
def test_a_changed_file_is_refused(tmp_path: Path, change: str) -> None:
    file = write(tmp_path / "x.jsonl", good(3))
    if change == "gone":
        file.path.unlink()
    else:
        text = file.path.read_text()
        file.path.write_text(text + "{}\n" if change == "size" else text.replace("Q1", "Q9"))
    message = "x.jsonl: No such file" if change == "gone" else "x.jsonl has changed since this run began"
    with pytest.raises(PlainError, match=message):
        build_shard("demo", source(), [file], tmp_path / "shard")
    assert not (tmp_path / "shard").exists()


def a_run(tmp_path: Path) -> Run:
    file = write(tmp_path / "data" / "x.jsonl", [*good(9), "x"])
    folder = tmp_path / "results" / "demo-1234"
    folder.mkdir(parents=True)
    values = {
        "name": "demo",
        "sources": {"mine": {"path": str(tmp_path / "data" / "*.jsonl"), "shape": "prompt_response"}},
        "model": {"path": "m"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    locked = {"name": file.path.name, "bytes": file.bytes, "sha256": file.sha256}
    files.write_json(folder / "lock.json", {"sources": {"mine": {"shard": "sources/mine-abc", "files": [locked]}}})
    return Run(folder)


def test_the_job(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    normalize.normalize(run.source("mine"))
    assert files.read_json(run.source("mine")) == {
        "source": "mine",
        "shard": "sources/mine-abc",
        "rows": 10,
        "prompts": 9,
        "rejects": {"malformed_json": 1},
        "sha256": files.sha256_file(run.results / "sources" / "mine-abc" / "prompts.parquet"),
    }
    assert json.loads((run.folder / "timings.jsonl").read_text())["stage"] == "sources"
    assert source_shard(run, "mine") == run.results / "sources" / "mine-abc"


def test_the_job_knows_the_runs_sources(tmp_path: Path) -> None:
    with pytest.raises(PlainError, match="the run has no source 'other'; it has mine"):
        normalize.normalize(a_run(tmp_path).source("other"))


DEMO_SHAPES: dict[str, tuple[config.Shape, int, dict[str, int]]] = {
    "sharegpt_chat.jsonl": ("sharegpt", 22, {"empty_prompt": 1, "no_user_turn": 1, "unknown_role": 1}),
    "messages_qa.parquet": ("messages", 22, {"empty_prompt": 1, "no_user_turn": 1}),
    "prompt_response_math.jsonl": (
        "prompt_response",
        23,
        {"empty_prompt": 1, "malformed_json": 1, "missing_column": 1},
    ),
    "alpaca_instructions.jsonl": ("alpaca", 23, {"empty_prompt": 1, "not_an_object": 1}),
    "system_questions.parquet": ("prompt_response_system", 23, {"empty_prompt": 2}),
    "tool_queries.jsonl": ("tools_query_answers", 22, {"bad_tools": 1, "empty_prompt": 1}),
    "code_problems.jsonl.gz": ("prompt_response", 14, {"empty_prompt": 1}),
}


def test_the_demo_sources(tmp_path: Path) -> None:
    assert {path.name for path in resolve(str(DEMO))} == set(DEMO_SHAPES)
    keys = []
    for name, (shape, count, rejects) in DEMO_SHAPES.items():
        folder = tmp_path / name
        stats = build_shard("demo", source(shape), [SourceFile.of(DEMO / name)], folder)
        assert (name, stats["prompts"], stats["rejects"]) == (name, count, rejects)
        keys += [row["dedupe_key"] for row in prompts(folder)]
    assert (len(keys), len(set(keys))) == (149, 145)

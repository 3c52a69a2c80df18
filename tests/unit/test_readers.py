"""Files to rows: every trap comes through exact, or is rejected by number while the rows around it stay."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.errors import PlainError
from workflow_scripts.sources import json_rows
from workflow_scripts.sources.readers import column_names, read_rows, resolve
from workflow_scripts.sources.rejects import BadRow

Seen = list[tuple[int, Any]]


def seen(file: Path, limit: int = 1 << 20) -> Seen:
    """The rows, bad ones by kind."""
    return [(number, row.kind if isinstance(row, BadRow) else row) for number, row in read_rows(file, None, limit)]


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n\n", []),
        (b'{"a":1}\n{"a":2}\n', [(0, {"a": 1}), (1, {"a": 2})]),
        (b'{"a":1}\n{"a":2}', [(0, {"a": 1}), (1, {"a": 2})]),
        (b'{"a":1}\n\n \t\n{"a":2}\n\n\n', [(0, {"a": 1}), (3, {"a": 2})]),
        (b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n', [(0, {"a": 1}), (1, {"a": 2})]),
        (b'{"a":1}\n{"a":', [(0, {"a": 1}), (1, "malformed_json")]),
        (b'{"a":"\xff"}\n{"a":2}\n', [(0, "invalid_utf8"), (1, {"a": 2})]),
        (b'{"a":"\xed\xa0\x80"}\n{"a":2}\n', [(0, "invalid_utf8"), (1, {"a": 2})]),
        (b'{"a":"\\ud800"}\n{"a":2}\n', [(0, "lone_surrogate"), (1, {"a": 2})]),
        (b'{"a":"\\ud83d\\ude00"}\n', [(0, {"a": "\U0001f600"})]),
        (b'{"a":"x\x00y"}\n{"a":2}\n', [(0, "nul_byte"), (1, {"a": 2})]),
        (b'{"a":"x\\u0000y"}\n', [(0, {"a": "x\x00y"})]),
        (b'[1]\n"x"\nnull\n7\n{"a":2}\n', [*((n, "not_an_object") for n in range(4)), (4, {"a": 2})]),
        (b'{"a":NaN}\n{"a":1e999}\n', [(0, "malformed_json"), (1, "malformed_json")]),
        (b'{"a":1,"a":2}\n', [(0, {"a": 2})]),
        (b'{"a":null}\n{"a":"x"}\n{"a":[{"b":1}]}\n', [(0, {"a": None}), (1, {"a": "x"}), (2, {"a": [{"b": 1}]})]),
        (b'{"a":"2024-01-01"}\n', [(0, {"a": "2024-01-01"})]),
        (b'{"a":"x\xe2\x80\xa8y\xc2\x85z"}\n', [(0, {"a": "x\u2028y\x85z"})]),
        (b"[" * 2000 + b"\n" + b'{"a":2}\n', [(0, "malformed_json"), (1, {"a": 2})]),
    ],
)
def test_json_lines(tmp_path: Path, data: bytes, expected: Seen) -> None:
    assert seen(write(tmp_path / "x.jsonl", data)) == expected


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**300])
def test_integers_of_any_size_are_exact(tmp_path: Path, number: int) -> None:
    line = b'{"text":"00000000000000000000","n":%d,"f":0.1}\n' % number
    [(_, row)] = seen(write(tmp_path / "x.jsonl", line))
    assert row == {"text": "00000000000000000000", "n": number, "f": 0.1}
    assert type(row["n"]) is int


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[]", []),
        (b"  \n[ ]\n", []),
        (b'[{"a":1},{"a":2}]', [(0, {"a": 1}), (1, {"a": 2})]),
        (b'\xef\xbb\xbf [\r\n {"a": [1, {"b": "]}\\\\\\",["}]},\r\n {"a": 2}\r\n]\r\n', None),
        (b'[{"a":1},{"a":2},]', [(0, {"a": 1}), (1, {"a": 2})]),
        (b'[{"a":1},,{"a":2}]', [(0, {"a": 1}), (1, "malformed_json"), (2, {"a": 2})]),
        (b'[{"a":1},{"a":},{"a":2}]', [(0, {"a": 1}), (1, "malformed_json"), (2, {"a": 2})]),
        (b'[1,[2,3],"x,y",null,{"a":2}]', [*((n, "not_an_object") for n in range(4)), (4, {"a": 2})]),
        (b'[{"a":1},{"a":"\xff"},{"a":2}]', [(0, {"a": 1}), (1, "invalid_utf8"), (2, {"a": 2})]),
        (b'[{"a":1},{"a":', [(0, {"a": 1}), (1, "malformed_json")]),
        (b'[{"a":1},{"a":"x', [(0, {"a": 1}), (1, "malformed_json")]),
        (b'[{"a":1},', [(0, {"a": 1}), (1, "malformed_json")]),
        (b'[{"a":1}', [(0, {"a": 1}), (1, "malformed_json")]),
        (b'{"a":1}\n{"a":2}\n', [(0, {"a": 1}), (1, {"a": 2})]),
        (b"", []),
    ],
)
def test_json_array_or_lines(tmp_path: Path, data: bytes, expected: Seen | None) -> None:
    if expected is None:
        expected = list(enumerate(json.loads(data.decode("utf-8-sig"))))
    assert seen(write(tmp_path / "x.json", data)) == expected


@pytest.mark.parametrize("data", [b'[{"a":[1}},{"a":2}]', b'[{"a":1}] [{"a":2}]', b'[{"a":1}]}'])
def test_array_that_can_not_be_followed_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(PlainError, match="at byte"):
        seen(write(tmp_path / "x.json", data))


def test_array_that_never_ends_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlainError, match="quote or bracket is missing"):
        seen(write(tmp_path / "x.json", b'[{"a":"x},' + b'{"a":1},' * 100 + b"]"), limit=200)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(rows=st.lists(st.dictionaries(st.text(), json_values)), indent=st.none() | st.just(1), block=st.integers(1, 40))
def test_arrays_and_lines_come_through_whatever_the_blocks(
    rows: list[dict[str, Any]], indent: int | None, block: int
) -> None:
    array = b"\n " + json.dumps(rows, indent=indent, ensure_ascii=False).encode()
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()

    def blocks(data: bytes) -> list[bytes]:
        return [data[at : at + block] for at in range(0, len(data), block)]

    start = array.index(b"[") // block  # the reader hands on the blocks from the first that is not blank
    elements = json_rows._elements(iter(blocks(array)[start:]), 1 << 20, Path("x.json"))
    assert [json_rows.parse_object(text.data) for text in elements] == rows
    split = [text.data for text in json_rows._lines(iter(blocks(lines)), 1 << 20)]
    assert [json_rows.parse_object(data) for data in split[:-1]] == rows
    assert split[-1] == b""


@given(data=st.binary() | st.text(alphabet='[]{}",:\\ a1').map(str.encode))
def test_no_bytes_raise_anything_but_a_plain_error(data: bytes) -> None:
    for text in json_rows._lines(iter([data]), 50):
        json_rows.parse_object(text.data)
    try:
        for text in json_rows._elements(iter([b"[" + data]), 50, Path("x.json")):
            json_rows.parse_object(text.data)
    except PlainError:
        pass


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_a_huge_row_is_rejected_and_its_neighbours_stay(tmp_path: Path, name: str) -> None:
    rows = [b'{"a":1}', b'{"a":"' + b"x" * 20_000_000 + b'"}', b'{"a":2}']
    data = b"\n".join(rows) if name == "x.jsonl" else b"[" + b",".join(rows) + b"]"
    found = list(read_rows(write(tmp_path / name, data)))
    assert [found[0], found[2]] == [(0, {"a": 1}), (2, {"a": 2})]
    bad = found[1][1]
    assert isinstance(bad, BadRow)
    assert bad.kind == "too_large" and "20000008 bytes" in bad.detail
    assert bad.excerpt == '{"a":"' + "x" * 194


def test_a_huge_row_is_not_held(tmp_path: Path) -> None:
    import tracemalloc

    file = tmp_path / "x.jsonl.zst"
    with file.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as out:
        for _ in range(200):
            out.write(b"x" * (1 << 20))
    tracemalloc.start()
    try:
        assert seen(file, limit=1 << 20) == [(0, "too_large")]
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def packed(data: bytes, packing: str) -> bytes:
    return gzip.compress(data) if packing == "gz" else zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_packed_files(tmp_path: Path, packing: str) -> None:
    one, two = b'\xef\xbb\xbf{"a":1}\n', b'{"a":2}\n'
    file = write(tmp_path / f"x.jsonl.{packing}", packed(one, packing) + packed(two, packing))
    assert seen(file) == [(0, {"a": 1}), (1, {"a": 2})]
    assert seen(write(tmp_path / f"y.json.{packing}", packed(b'[{"a":1}]', packing))) == [(0, {"a": 1})]


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_a_packed_file_cut_short_is_an_error(tmp_path: Path, packing: str) -> None:
    data = packed(b"".join(b'{"a":%d}\n' % n for n in range(1000)), packing)
    with pytest.raises(PlainError, match="cut short"):
        seen(write(tmp_path / f"x.jsonl.{packing}", data[:-10]))


def test_parquet_rows_and_columns(tmp_path: Path) -> None:
    rows = [{"id": n, "messages": [{"role": "user", "content": None if n % 7 == 0 else f"q{n}"}]} for n in range(5000)]
    file = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=700)
    assert seen(file) == list(enumerate(rows))
    assert column_names(file) == ["id", "messages"]
    assert list(read_rows(file, {"id", "other"}))[-1] == (4999, {"id": 4999})
    assert list(read_rows(file, {"other"})) == [(n, {}) for n in range(5000)]


def test_parquet_bad_values_are_rejected_one_by_one(tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    content = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xffc"))
    turns = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.StructArray.from_arrays([content], ["c"]))
    pq.write_table(pa.table({"m": turns}), tmp_path / "x.parquet")
    assert seen(tmp_path / "x.parquet") == [(0, {"m": [{"c": "a"}]}), (1, "invalid_utf8"), (2, {"m": [{"c": "c"}]})]
    pq.write_table(pa.table({"t": ["a", "b" * 5000, "c"]}), tmp_path / "y.parquet")
    assert seen(tmp_path / "y.parquet", limit=1000) == [(0, {"t": "a"}), (1, "too_large"), (2, {"t": "c"})]


def test_parquet_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "x.parquet")
    assert seen(tmp_path / "x.parquet") == []


def test_a_broken_parquet_file_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [str(n) for n in range(1000)]}), tmp_path / "x.parquet")
    whole = (tmp_path / "x.parquet").read_bytes()
    for data in (b"", whole[:-100], whole[:10] + b"\xff" * 2000 + whole[2010:]):
        with pytest.raises(PlainError, match=r"not a whole Parquet file"):
            seen(write(tmp_path / "y.parquet", data))


def test_a_missing_file_is_a_plain_error(tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.parquet"):
        with pytest.raises(PlainError, match="No such file"):
            seen(tmp_path / name)


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.jsonl", "a.JSONL.gz", "deep/er/c.parquet", ".hidden.jsonl", "[x].json", "notes.txt"):
        write(tmp_path / "data" / name, b"")
    monkeypatch.chdir(tmp_path)
    everything = [Path("data") / name for name in ("[x].json", "a.JSONL.gz", "b.jsonl", "deep/er/c.parquet")]
    assert resolve("data/b.jsonl") == [Path("data/b.jsonl")]
    assert resolve("data/*.json*") == [Path("data/[x].json"), Path("data/b.jsonl")]
    assert resolve("data/[x].json") == [Path("data/[x].json")]
    assert resolve("data/**/*.parquet") == [Path("data/deep/er/c.parquet")]
    assert resolve("data") == everything
    assert resolve(str(tmp_path / "data")) == [tmp_path / path for path in everything]


def test_resolve_says_what_is_wrong(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", b"")
    for pattern, message in [
        ("*.jsonl", "no such file"),
        ("*", "must end in .parquet, .jsonl"),
        ("", "no file in this"),
    ]:
        with pytest.raises(PlainError, match=message):
            resolve(str(tmp_path / pattern))

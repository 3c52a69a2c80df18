"""Files are whole or absent, and a journal survives a torn tail."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.files import Journal

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), files.atomic_path(path) as tmp:
        tmp.write_text("half")
        raise RuntimeError
    assert files.read_json(path) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".a.json.tmp").write_text("half of a fi")
    files.write_json(tmp_path / "a.json", 1, mode=0o600)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_writers_of_one_file_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    def write(number: int) -> None:
        for _ in range(20):
            files.write_json(path, {"numbers": [number] * 1000})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    value = files.read_json(path)["numbers"]
    assert len(value) == 1000 and len(set(value)) == 1
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


@given(rows=st.lists(JSON, max_size=5))
def test_rows_come_back_and_equal_rows_give_equal_bytes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    assert files.write_jsonl_zst(folder / "a", rows) == len(rows)
    files.write_jsonl_zst(folder / "b", rows)
    assert list(files.read_jsonl_zst(folder / "a")) == rows
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    files.write_jsonl_zst(path, [{"a": "b" * 1000}])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PlainError, match=r"a\.jsonl\.zst is damaged"):
        list(files.read_jsonl_zst(path))


@given(rows=st.lists(JSON, min_size=1, max_size=5), data=st.data())
def test_a_journal_cut_anywhere_keeps_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "00000.jsonl"
    with Journal(path) as journal:
        ends = [sum(journal.append(row)) for row in rows]
    cut = data.draw(st.integers(0, ends[-1]))
    path.write_bytes(path.read_bytes()[:cut])
    whole = [row for row, end in zip(rows, ends, strict=True) if end <= cut]
    with Journal(path) as journal:
        assert [value for _, _, value in journal.lines()] == whole
        place = journal.append({"next": 1})
        assert journal.read(*place) == b'{"next":1}\n'
    with Journal(path) as journal:
        assert [value for _, _, value in journal.lines()] == [*whole, {"next": 1}]


def test_a_torn_tail_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"a":1}\n' + b"x" * 200_000)
    with Journal(path) as journal:
        assert [value for _, _, value in journal.lines()] == [{"a": 1}]
    assert path.read_bytes() == b'{"a":1}\n'


def test_json_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("null")
    with pytest.raises(PlainError, match=r"a\.json does not hold what it should"):
        files.read_json(tmp_path / "a.json")


def test_two_writers_of_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(files.Locked):
        Journal(tmp_path / "j")


def test_a_damaged_whole_line_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"a":1}\n{"b":\n{"c":3}\n')
    with Journal(path) as journal, pytest.raises(PlainError, match="the line at byte 8 is not JSON"):
        list(journal.lines())
    assert path.stat().st_size == 22


# --- power loss: the kernel keeps what was fsynced, and of names only what a folder's fsync keeps ---


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What is made durable, in order: ("fsync", path), ("rename", new path), ("mkdir", path)."""
    found: list[tuple[str, Path]] = []
    fsync, replace, mkdir = os.fsync, Path.replace, Path.mkdir

    def fsynced(fd: int) -> None:
        found.append(("fsync", Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    def replaced(path: Path, target: Path) -> Path:
        found.append(("rename", target))
        return replace(path, target)

    def made(path: Path, **how: Any) -> None:
        mkdir(path, **how)
        found.append(("mkdir", path))

    monkeypatch.setattr(os, "fsync", fsynced)
    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(Path, "mkdir", made)
    return found


def test_a_file_is_on_disk_before_its_name_and_its_name_before_it_is_done(
    tmp_path: Path, calls: list[tuple[str, Path]]
) -> None:
    path = tmp_path / "new" / "newer" / "a.json"
    files.write_json(path, 1)
    assert calls == [
        ("mkdir", tmp_path / "new"),
        ("fsync", tmp_path),
        ("mkdir", tmp_path / "new" / "newer"),
        ("fsync", tmp_path / "new"),
        ("fsync", path.with_name(".a.json.tmp")),
        ("rename", path),
        ("fsync", path.parent),
    ]


def test_a_journals_lines_and_its_name_are_on_disk_when_it_says_so(
    tmp_path: Path, calls: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "00000.jsonl"
    with Journal(path) as journal:
        assert calls == [("fsync", tmp_path)]
        monkeypatch.setattr(files, "FSYNC_EVERY_SECONDS", 1e9)
        journal.append({"n": 1})
        assert calls[1:] == []
        monkeypatch.setattr(files, "FSYNC_EVERY_SECONDS", 0.0)
        journal.append({"n": 2})
        assert calls[1:] == [("fsync", path)]
    assert calls[2:] == [("fsync", path)]


def test_a_library_in_rust_that_finds_no_room_is_told_as_the_system_says_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as error, files.atomic_path(tmp_path / "a"):
        raise RuntimeError("parquet: underlying IO error: No space left on device (os error 28)")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "a"))
    with pytest.raises(RuntimeError, match=r"^another$"), files.atomic_path(tmp_path / "a"):
        raise RuntimeError("another")

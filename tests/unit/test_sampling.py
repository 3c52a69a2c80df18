"""Which row groups a sample is read from, and which rows of them."""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.sources import sampling
from workflow_scripts.sources.readers import NamedFile, SourceRow, as_size, read_batches
from workflow_scripts.sources.sampling import LEAST_GROUPS, Sample, choose_groups, is_sampled


@given(total=st.integers(1, 300), sample=st.integers(1, 300))
def test_a_sample_is_even_and_exact(total: int, sample: int) -> None:
    taken = [index for index in range(total) if is_sampled(index, sample, total)]
    assert len(taken) == min(sample, total)
    gaps = {after - before for before, after in pairwise(taken)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@given(rows=st.lists(st.integers(0, 50), max_size=400), sample=st.integers(1, 10_000))
def test_groups_are_enough_and_even(rows: list[int], sample: int) -> None:
    chosen = choose_groups(rows, sample)
    filled = [group for group, count in enumerate(rows) if count]
    assert sum(rows[group] for group in chosen) >= min(sample, sum(rows))
    assert len(chosen) >= min(LEAST_GROUPS, len(filled))
    assert sorted(set(chosen)) == chosen and set(chosen) <= set(filled)
    places = [filled.index(group) for group in chosen]
    gaps = {after - before for before, after in pairwise(places)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@given(groups=st.integers(1, 2000), size=st.integers(1, 1000), share=st.floats(0.001, 1))
def test_of_groups_of_one_size_hardly_more_are_chosen_than_needed(groups: int, size: int, share: float) -> None:
    sample = max(1, int(groups * size * share))
    needed = max(-(-sample // size), min(LEAST_GROUPS, groups))
    assert needed <= len(choose_groups([size] * groups, sample)) <= needed + 1 + needed // 64


def test_half_of_the_rows_are_every_second_group() -> None:
    assert choose_groups([1000] * 1400, 700_000) == list(range(1, 1400, 2))
    assert choose_groups([1000] * 1400, 1_400_000) == choose_groups([1000] * 1400, 10**9) == list(range(1400))
    assert len(choose_groups([1000] * 1400, 5)) == LEAST_GROUPS
    assert choose_groups([], 5) == choose_groups([0, 0], 5) == []


def parts(tmp_path: Path, *sizes: int, group: int = 10) -> list[NamedFile]:
    """Parquet files of so many rows, which are numbered through."""
    made, start = [], 0
    for index, size in enumerate(sizes):
        path = tmp_path / f"{index}.parquet"
        pq.write_table(pa.table({"n": range(start, start + size), "x": ["x"] * size}), path, row_group_size=group)
        made.append(NamedFile(path, path.name))
        start += size
    return made


def read(files: list[NamedFile], rows: int) -> list[SourceRow]:
    sample = Sample.of(files, rows, {"n"}, 1 << 20)
    return [
        row
        for batch in read_batches(files, {"n"}, 1 << 20, sample.groups)
        for index, row in enumerate(batch.parse(), batch.seen)
        if is_sampled(index, sample.rows, sample.kept_rows)
    ]


@pytest.mark.parametrize("rows", [1, 7, 100, 333, 999, 1000, 5000])
def test_rows_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(sampling, "LEAST_GROUPS", 5)
    files = parts(tmp_path, 505, 0, 95, 400)
    found = read(files, rows)
    assert len(found) == min(rows, 1000)
    starts = {"0.parquet": 0, "2.parquet": 505, "3.parquet": 600}
    for row in found:
        assert row.row == {"n": row.in_source}
        assert row.number == row.in_source - starts[row.file]
    assert found == sorted(found, key=lambda row: row.in_source)
    if rows >= 7:
        assert {row.file for row in found} >= {"0.parquet", "3.parquet"}


def test_groups_that_are_not_chosen_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LEAST_GROUPS", 5)
    [file] = parts(tmp_path, 200)
    assert isinstance(file.path, Path)
    before = read([file], 50)
    assert {row.number // 10 for row in before} == set(choose_groups([10] * 20, 50))
    data, about = bytearray(file.path.read_bytes()), pq.read_metadata(file.path)
    for group in set(range(20)) - set(choose_groups([10] * 20, 50)):
        for column in range(2):
            start = about.row_group(group).column(column).dictionary_page_offset
            data[start : start + 20] = b"\xff" * 20
    file.path.write_bytes(data)
    assert read([file], 50) == before


def test_other_files_beside_are_sampled_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LEAST_GROUPS", 1)
    files = parts(tmp_path, 50)
    lines = tmp_path / "x.jsonl"
    lines.write_text("\n" + "".join(f'{{"n":{n}}}\n' for n in range(50, 100)))
    found = read([*files, NamedFile(lines, "x.jsonl")], 10)
    assert [row.row for row in found] == [{"n": n} for n in range(9, 100, 10)]
    assert [row.number for row in found] == [9, 19, 29, 39, 49, 10, 20, 30, 40, 50]  # of the line: one is empty


def test_what_is_said_of_it(tmp_path: Path) -> None:
    files = parts(tmp_path, 1500, 500)
    assert Sample.of(files, 1000, {"n"}, 1 << 20).describe() == "reading a sample of 1,000 of 2,000 rows"
    assert Sample.of(files, 2000, {"n"}, 1 << 20).describe() is None
    sizes = (0, 99, 4567, 44_400_000_000, 1_234_000_000, 99_000_000)
    assert [as_size(size) for size in sizes] == ["0 bytes", "99 bytes", "4.6 kB", "44.4 GB", "1.2 GB", "99.0 MB"]

"""An even sample of a source's rows: of Parquet, from evenly spaced row groups, so that the others are never read."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from workflow_scripts.sources.readers import (
    PARQUET,
    NamedFile,
    as_size,
    count_rows,
    ending,
    row_groups,
)

LEAST_GROUPS = 64  # of a small sample, so that it is not one corner of the data


def is_sampled(index: int, sample: int, total: int) -> bool:
    """Whether row `index` of `total` is in an even sample: exactly `sample` rows are, wherever that is not more.

    Row i is taken where floor(i x sample / total) steps up behind it: no seed, the same rows every time.
    """
    return (index + 1) * sample // total > index * sample // total


def choose_groups(rows: Sequence[int], sample: int) -> list[int]:
    """Which row groups a sample is read from, by the rows that each group has: evenly spaced ones.

    They hold `sample` rows, or all there are, and are no fewer than LEAST_GROUPS. Groups without rows are left out.
    """
    filled = [group for group, count in enumerate(rows) if count]
    total = sum(rows)
    if sample >= total:
        return filled
    keep = max(LEAST_GROUPS, len(filled) * sample // total)
    while keep < len(filled):
        chosen = [group for index, group in enumerate(filled) if is_sampled(index, keep, len(filled))]
        if sum(rows[group] for group in chosen) >= sample:
            return chosen
        keep += 1 + keep // 64  # the groups' sizes differ
    return filled


class Sample(NamedTuple):
    """Which rows of these files are read. `groups` has the chosen row groups of each file; None where all are."""

    files: Sequence[NamedFile]
    rows: int
    total: int
    groups: list[list[int]] | None
    kept_rows: int  # in the chosen groups, or in all
    remote_bytes: int  # that are to come from the hub

    @classmethod
    def of(cls, files: Sequence[NamedFile], rows: int, columns: Collection[str], max_row_bytes: int) -> "Sample":
        """An even sample of so many rows, or all there are, with these columns of Parquet.

        Parquet's footers are read, all of any other file: unless all files are Parquet, rows are chosen one by one.
        """
        if not all(ending(file.path) in PARQUET for file in files):
            total = sum(count_rows(file.path, max_row_bytes) for file in files)
            return cls(files, min(rows, total), total, None, total, 0)
        found = [row_groups(file.path, columns) for file in files]
        counts = [group.rows for groups in found for group in groups]
        first_groups = list(accumulate((len(groups) for groups in found), initial=0))
        chosen: list[list[int]] = [[] for _ in files]
        kept = remote_bytes = 0
        for group in choose_groups(counts, rows):
            file = bisect_right(first_groups, group) - 1
            number = group - first_groups[file]
            chosen[file].append(number)
            kept += counts[group]
            if not isinstance(files[file].path, Path):
                remote_bytes += found[file][number].bytes
        total = sum(counts)
        return cls(files, min(rows, total), total, chosen, kept, remote_bytes)

    def describe(self) -> str | None:
        """What is read and what comes from the hub, for the terminal; None where all rows are read, from here."""
        reading = f"reading a sample of {self.rows:,} of {self.total:,} rows"
        if self.rows == self.total:
            reading = f"reading all {self.total:,} rows"
        remote = [file.path for file in self.files if not isinstance(file.path, Path)]
        if remote:
            size = as_size(sum(file.bytes for file in remote))
            reading = f"{len(remote)} file{'s' * (len(remote) != 1)}, {size} on the hub; {reading}"
            return f"{reading}, about {as_size(self.remote_bytes)}"
        return None if self.rows == self.total else reading

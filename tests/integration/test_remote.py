"""A sample of Parquet on the hub: parts come by range, and give what the whole files give."""

import random
import shutil
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from tests.standin.hub import LARGE, Hub
from workflow_scripts import config, files
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import download, hub, normalize, parquet_rows, remote, sampling, transfer
from workflow_scripts.sources.normalize import SourceFile, build_shard

STORE = "^/[0-9a-f]{64}$"
GROUP = 20


def parquet(path: Path, rows: int, seed: int = 0, **how: Any) -> bytes:
    """A file of this many questions, in groups of 20; every 31st has none, and each drags some 2 kB of an extra."""
    draw = random.Random(seed)
    table = pa.table(
        {
            "prompt": [None if n % 31 == 30 else f"{seed}-{n} {draw.randbytes(100).hex()}" for n in range(rows)],
            "extra": [draw.randbytes(2000) for _ in range(rows)],
            "response": [f"A{n}" for n in range(rows)],
        }
    )
    pq.write_table(table, path, row_group_size=GROUP, **{"write_statistics": False, **how})
    return path.read_bytes()


@pytest.fixture
def held(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Three files, of 2,000 rows and 100 groups, on the hub."""
    monkeypatch.setattr(sampling, "LEAST_GROUPS", 5)
    monkeypatch.setattr(parquet_rows, "GAP_BYTES", 100)
    sizes = (1000, 10, 990)
    held = {f"data/train-{n}.parquet": parquet(tmp_path / "made", size, n) for n, size in enumerate(sizes)}
    served.commit("o/d", held)
    return held


def reading(sample: int | None = 300, shape: str = "prompt_response", **more: Any) -> config.Reading:
    return config.Reading.model_validate({"dataset": "o/d", "shape": shape, "sample": sample, **more})


def shard(folder: Path, source: config.Reading) -> Path:
    """The shard by the hub, as the job makes it."""
    return normalize.ensure_shard(
        folder, "s", source, hub.resolve("o/d", None, None, None, []).to_json() | {"shard": "sources/s"}
    )


def local_shard(folder: Path, source: config.Reading, held: dict[str, bytes]) -> Path:
    """The shard of the same files, if they were here."""
    sources = []
    for number, (name, data) in enumerate(held.items()):
        path = folder / f"{number}.parquet"
        folder.mkdir(exist_ok=True)
        path.write_bytes(data)
        sources.append(SourceFile(path, name, len(data), None))
    build_shard("s", source, sources, folder / "shard")
    return folder / "shard"


def content(shard: Path) -> list[bytes]:
    return [(shard / name).read_bytes() for name in ("prompts.parquet", "rejects.jsonl.zst")]


def failure(tmp_path: Path, source: config.Reading) -> str:
    with pytest.raises(PlainError) as error:
        shard(tmp_path / "results", source)
    text = str(error.value)
    assert text and "\n" not in text
    assert not (tmp_path / "results" / "sources" / "s").exists()
    return text


@pytest.mark.parametrize("sample", [10, 300, 1999, 2000, 5000])
@pytest.mark.parametrize("shape", ["prompt_response", "auto"])
def test_a_sample_is_that_of_the_whole_files(
    served: Hub, held: dict[str, bytes], tmp_path: Path, sample: int, shape: str
) -> None:
    made = shard(tmp_path / "results", reading(sample, shape))
    assert content(made) == content(local_shard(tmp_path / "local", reading(sample, shape), held))
    stats = files.read_json(made / "stats.json")
    assert stats["rows"] == min(sample, 2000)
    assert stats.get("rows_in_source") == (2000 if sample < 2000 else None)
    assert stats["columns"] == ["extra", "prompt", "response"]


def test_only_parts_come_and_their_size_is_said_first(
    served: Hub, held: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(tmp_path / "results", reading(300))
    whole = sum(map(len, held.values()))
    assert whole > 4_000_000
    at_store = [asked for asked in served.log if asked.origin == "store"]
    assert all(asked.range is not None and asked.status == 206 for asked in at_store)
    ends = tuple(f"-{len(data) - 1}" for data in held.values())
    footers = [asked for asked in at_store if asked.range is not None and asked.range.endswith(ends)]
    assert [asked.sent for asked in footers] == [65536, len(held["data/train-1.parquet"]), 65536]  # of each file once
    groups = sum(asked.sent for asked in at_store) - sum(asked.sent for asked in footers)
    assert 30_000 < groups < whole / 20
    assert len(at_store) <= 3 + 2 * 16  # two columns apart, of each group once
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        f"source s: 3 files, {whole / 1e6:.1f} MB on the hub; reading a sample of 300 of 2,000 rows, about "
        f"{groups / 1e3:.1f} kB"
    )
    assert not list((tmp_path / "home").rglob("*.parquet*"))


def test_a_long_footer_comes_once(served: Hub, tmp_path: Path) -> None:
    data = parquet(tmp_path / "made", 2000, write_statistics=True)
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert footer > 3 * 65536
    served.commit("o/d", {"train.parquet": data})
    shard(tmp_path / "results", reading(100, "auto"))
    ranges = [asked.range for asked in served.log if asked.origin == "store"]
    size = len(data)
    assert ranges[:2] == [f"bytes={size - 65536}-{size - 1}", f"bytes={size - footer}-{size - 65537}"]
    assert not any(f"-{size - 1}" in str(asked) for asked in ranges[1:])


def test_auto_looks_at_the_first_rows_only(served: Hub, held: dict[str, bytes], tmp_path: Path) -> None:
    shard(tmp_path / "results", reading(40, "auto"))
    assert sum(asked.sent for asked in served.log) < sum(map(len, held.values())) / 3


def test_columns_with_fields(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All fields of a wanted column are one part, and no column of a like name is in it."""
    monkeypatch.setattr(sampling, "LEAST_GROUPS", 5)
    draw = random.Random(0)
    turns = [[{"role": "user", "content": f"Q{n} {draw.randbytes(100).hex()}"}] for n in range(2000)]
    table = pa.table({"messages": turns, "messages_more": [[draw.randbytes(9000)] for _ in range(2000)]})
    pq.write_table(table, tmp_path / "made", row_group_size=200)
    held = {"train.parquet": (tmp_path / "made").read_bytes()}
    served.commit("o/d", held)
    source = reading(500, "messages")
    made = shard(tmp_path / "results", source)
    assert content(made) == content(local_shard(tmp_path / "local", source, held))
    at_store = [asked for asked in served.log if asked.origin == "store"]
    assert len(at_store) == 1 + 5 and sum(asked.sent for asked in at_store) < 300_000


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_a_file_that_is_here_is_read_here(served: Hub, held: dict[str, bytes], tmp_path: Path, whole: int) -> None:
    found = hub.resolve("o/d", None, None, None, [])
    snapshot = tmp_path / "hf" / "datasets--o--d" / "snapshots" / found.revision / "data"
    snapshot.mkdir(parents=True)
    if whole:
        (snapshot / "train-0.parquet").write_bytes(held["data/train-0.parquet"])
        download.fetch("o/d", found.revision, found.files[whole], "source s")
    served.log.clear()
    made = shard(tmp_path / "results", reading())
    assert content(made) == content(local_shard(tmp_path / "local", reading(), held))
    asked = {asked.path.rpartition("/")[2] for asked in served.asked("/resolve/")}
    assert asked == {f"train-{n}.parquet" for n in range(3) if not whole or n not in (0, whole)}


def test_the_token_stays_at_the_hub(
    served: Hub, held: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.repositories["o/d"].gate = "good"
    monkeypatch.setenv("HF_TOKEN", "good")
    shard(tmp_path / "results", reading())
    assert all(asked.authorized == (asked.origin == "hub") for asked in served.log)
    served.repositories["o/d"].gate = "another"
    monkeypatch.setattr(hub, "_check_access", lambda *_: None)  # it is taken away after the look-up
    assert "o/d is gated" in failure(tmp_path / "again", reading())


def test_files_that_the_hub_holds_itself(served: Hub, tmp_path: Path) -> None:
    table = pa.table({"prompt": [f"Q{n}" for n in range(9)]})
    pq.write_table(table, tmp_path / "made", store_schema=False, write_statistics=False)
    assert (tmp_path / "made").stat().st_size < LARGE
    served.cache_redirect = True
    served.commit("o/d", {"train.parquet": (tmp_path / "made").read_bytes()})
    made = shard(tmp_path / "results", reading(4))
    assert files.read_json(made / "stats.json")["prompts"] == 4
    assert served.asked("resolve-cache") and not [asked for asked in served.log if asked.origin == "store"]


@pytest.mark.parametrize("where", ["/resolve/", STORE])
@pytest.mark.parametrize("status", [429, 503])
def test_busy_then_fine_or_not(served: Hub, held: dict[str, bytes], tmp_path: Path, where: str, status: int) -> None:
    served.fault(where, times=1000, status=status, headers={"Retry-After": "0"})
    assert f"answers {status} (tried {transfer.TRIES} times)" in failure(tmp_path, reading())
    served.faults[0].times = transfer.TRIES - 1
    made = shard(tmp_path / "results", reading())
    assert content(made) == content(local_shard(tmp_path / "local", reading(), held))


def test_a_part_that_is_cut_goes_on(served: Hub, held: dict[str, bytes], tmp_path: Path) -> None:
    for _ in range(40):
        served.fault(STORE, cut=1000)
    made = shard(tmp_path / "results", reading())
    assert content(made) == content(local_shard(tmp_path / "local", reading(), held))
    first, second = [asked.range for asked in served.log if asked.origin == "store"][:2]
    size = len(held["data/train-0.parquet"])
    assert (first, second) == (f"bytes={size - 65536}-{size - 1}", f"bytes={size - 64536}-{size - 1}")


def test_short_bodies(served: Hub, held: dict[str, bytes], tmp_path: Path) -> None:
    served.fault(STORE, times=1000, short=3000)  # more than TRIES: each brings something
    made = shard(tmp_path / "results", reading())
    assert content(made) == content(local_shard(tmp_path / "local", reading(), held))


def test_ranges_that_are_not_heeded(served: Hub, held: dict[str, bytes], tmp_path: Path) -> None:
    served.fault(STORE, times=1000, whole=True)
    assert "with another range than was asked for (tried" in failure(tmp_path, reading())


def test_bytes_that_are_no_parquet(served: Hub, held: dict[str, bytes], tmp_path: Path) -> None:
    served.fault(STORE, times=1000, garbage=True)
    assert "o/d: data/train-0.parquet: what arrives is not Parquet" in failure(tmp_path, reading())
    served.faults.clear()
    served.fault(STORE, times=3)  # the footers are right, the groups are not
    served.fault(STORE, times=1000, garbage=True)
    assert "o/d: data/train-0.parquet: what arrives is not Parquet" in failure(tmp_path, reading())


@pytest.mark.parametrize("checksums", [True, False])
def test_checksums_of_pages_are_checked(served: Hub, tmp_path: Path, checksums: bool) -> None:
    data = parquet(tmp_path / "made", 100, write_page_checksum=checksums, compression="none", use_dictionary=False)
    place = data.index(b"0-7 ") + 10
    served.commit("o/d", {"train.parquet": data[:place] + b"?" + data[place + 1 :]})
    if checksums:
        assert "what arrives is not Parquet" in failure(tmp_path, reading(99))
    else:
        shard(tmp_path / "results", reading(99))


def test_offline(served: Hub, held: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = hub.resolve("o/d", None, None, None, []).to_json() | {"shard": "sources/s"}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PlainError, match="HF_HUB_OFFLINE is set"):
        normalize.ensure_shard(tmp_path / "results", "s", reading(), locked)


def test_large_parts_are_on_the_disk(
    served: Hub, held: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MEMORY_BYTES", 1)
    limits = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (1000, limits[1]))
    try:
        text = failure(tmp_path, reading())
    finally:
        setrlimit(RLIMIT_FSIZE, limits)
    assert text.startswith(f"{tmp_path / 'home' / 'hub'}: a part of o/d: data/train-0.parquet can't be kept there (")
    made = shard(tmp_path / "results", reading())
    assert content(made) == content(local_shard(tmp_path / "local", reading(), held))


class TestWholeFiles:
    def test_what_comes_is_said_first(
        self, served: Hub, held: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = hub.resolve("o/d", None, None, None, [])
        path = download.fetch("o/d", found.revision, found.files[1], "source s")
        served.log.clear()
        part = download._part(download._place("o/d", found.revision, found.files[0]))
        part.parent.mkdir(parents=True)
        part.write_bytes(held["data/train-0.parquet"][:1_000_000])
        shard(tmp_path / "results", reading(None))
        missing = sum(map(len, held.values())) - path.stat().st_size - 1_000_000
        assert sum(asked.sent for asked in served.log) == missing
        assert capsys.readouterr().out.splitlines()[0] == (
            f"source s: downloading 2 files, {missing / 1e6:.1f} MB from the hub (1.0 MB are here already)"
        )
        shard(tmp_path / "again", reading(None))
        assert "downloading" not in capsys.readouterr().out

    def test_a_disk_without_room(
        self, served: Hub, held: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Usage:
            free = 1_000_000

        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
        served.log.clear()
        whole = sum(map(len, held.values()))
        text = failure(tmp_path, reading(None))
        assert text.startswith(
            f"source s: 3 files of o/d take {whole / 1e6:.1f} MB in {tmp_path / 'home' / 'hub'}, where 1.0 MB are free"
        )
        assert not served.asked("/resolve/")

"""Earlier prompts in a real S3 store: listed once, bound to what was there, fetched once."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from workflow_scripts import files
from workflow_scripts.config import load_yaml
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import earlier_s3
from workflow_scripts.prompts.exclude import Exclude, open_exclude
from workflow_scripts.prompts.locking import lock_inputs
from workflow_scripts.run import Run
from workflow_scripts.sources.prompt_ids import identify

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of fetched objects; the store's own environment stays where it is."""
    monkeypatch.setattr(earlier_s3, "kept", lambda: tmp_path / "kept")
    return tmp_path / "kept"


def known(*texts: str) -> pl.DataFrame:
    ids = [identify([{"role": "user", "content": text}], None) for text in texts]
    return pl.DataFrame({"first_id": [one.first_id for one in ids], "dedupe_key": [one.dedupe_key for one in ids]})


def put(client: "S3Client", key: str, data: bytes) -> None:
    client.put_object(Bucket="draftmill", Key=key, Body=data)


def manifest(folder: Path, *texts: str) -> bytes:
    known(*texts).write_parquet(folder / "manifest.parquet")
    return (folder / "manifest.parquet").read_bytes()


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"prompt": text}) + "\n" for text in texts).encode()


def lock(run: Run, *prefixes: str) -> list[Any]:
    """What lock.json of a run that excludes these prefixes says of them."""
    values = load_yaml(run.folder / "run.yaml")
    files.write_json(run.folder / "run.yaml", values | {"prompts": {"exclude": list(prefixes)}})
    planned = {"exclude": [{"from": prefix} for prefix in prefixes]}
    locked: list[Any] = lock_inputs(Run(run.folder), planned)["exclude"]
    return locked


def opened(run: Run, recorded: list[Any]) -> Exclude:
    return open_exclude(Run(run.folder), recorded)


def test_a_prefix_is_listed_once_and_binds(run: Run, foreign: "S3Client", tmp_path: Path) -> None:
    top = f"earlier/{run.name}"
    put(foreign, f"{top}/first-1/manifest.parquet", manifest(tmp_path, "One?", "Two?"))
    put(foreign, f"{top}/first-1/completions/00000.jsonl.zst", b"not read")
    put(foreign, f"{top}/more.jsonl", lines("Three?"))
    [recorded] = lock(run, f"s3://draftmill/{top}/")
    assert [entry["name"] for entry in recorded["objects"]] == ["first-1/manifest.parquet", "more.jsonl"]
    put(foreign, f"{top}/later.jsonl", lines("Four?"))

    found = opened(run, [recorded])
    hits = found.check(known("Four?", "one?", "Three?"))
    assert {at: hit.repeats for at, hit in hits.items()} == {
        1: f"s3://draftmill/{top}/first-1/manifest.parquet:0",
        2: f"s3://draftmill/{top}/more.jsonl:0",
    }


def test_prefixes_may_be_recorded_in_another_order(run: Run, foreign: "S3Client") -> None:
    one, two = (f"earlier/{run.name}/{name}.jsonl" for name in ("one", "two"))
    put(foreign, one, lines("One?"))
    put(foreign, two, lines("Zero?", "Two?"))
    recorded = lock(run, *(f"s3://draftmill/{key}" for key in (one, two)))
    hits = opened(run, recorded[::-1]).check(known("Two?", "One?"))
    assert [hits[at].repeats for at in (0, 1)] == [f"s3://draftmill/{two}:1", f"s3://draftmill/{one}:0"]


def test_an_object_that_was_replaced_fails_the_job(run: Run, foreign: "S3Client", kept: Path) -> None:
    key = f"earlier/{run.name}/old.jsonl"
    put(foreign, key, lines("One?"))
    recorded = lock(run, f"s3://draftmill/{key}")
    assert opened(run, recorded).check(known("One?"))
    put(foreign, key, lines("Two?"))
    assert opened(run, recorded).check(known("One?"))  # it was fetched
    for path in kept.glob("*/*"):
        path.unlink()
    with pytest.raises(PlainError, match=r"old\.jsonl is another object than when this run began"):
        opened(run, recorded)
    foreign.delete_object(Bucket="draftmill", Key=key)
    with pytest.raises(PlainError, match=r"prompts\.exclude: s3://.*old\.jsonl: the store answered NoSuchKey"):
        opened(run, recorded)
    assert not list(kept.glob("*/*"))


def test_prefixes_without_prompts_are_said(run: Run, foreign: "S3Client") -> None:
    put(foreign, f"earlier/{run.name}/begun/owner.json", b"{}")
    with pytest.raises(PlainError, match=r"prompts\.exclude: .*/begun is a run's folder without manifest\.parquet"):
        lock(run, f"s3://draftmill/earlier/{run.name}/")
    with pytest.raises(PlainError, match=r"prompts\.exclude: s3://draftmill/nothing/ holds no prompts"):
        lock(run, "s3://draftmill/nothing/")
    with pytest.raises(PlainError, match=r"prompts\.exclude: s3://nobody/: the store answered NoSuchBucket"):
        earlier_s3.list_prefix(run, "s3://nobody/")

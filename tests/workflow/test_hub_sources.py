"""Sources on the hub in real runs: looked up once, bound, read, and replaced where they can't be."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.standin.hub import Hub, running_hub
from tests.standin.project import Project
from workflow_scripts import files

NOBODY = "http://127.0.0.1:9"  # the discard port: nothing answers


def lines(prompts: list[str]) -> bytes:
    return "".join(json.dumps({"instruction": prompt, "output": "Old."}) + "\n" for prompt in prompts).encode()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def project(fresh: Project, hub: Hub) -> Project:
    """One local source of twelve prompts, and one of eight on the hub."""
    hub.commit("own/data", {"data/train.jsonl": lines([f"Old {n}?" for n in range(8)])})
    fresh.config["sources"] = {
        "questions": fresh.config["sources"]["questions"],
        "hubs": {"dataset": "own/data", "take": 8},
    }
    fresh.env |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
    return fresh


def test_a_dataset_is_looked_up_once_and_its_commit_binds_the_run(project: Project, hub: Hub) -> None:
    planned = project.run("-n", HF_ENDPOINT=NOBODY)
    assert planned.code == 0 and "Source hubs" in planned.jobs, planned.output
    result = project.run("prompts")
    assert result.code == 0, result.output
    assert "shape prompt_response" in result.output
    commit = hub.repositories["own/data"].branches["main"]
    locked = files.read_json(project.made.lock)["sources"]["hubs"]
    assert (locked["dataset"], locked["revision"]) == ("own/data", commit)

    hub.commit("own/data", {"data/train.jsonl": lines(["New?"])})
    for made in ("sources/hubs.json", "manifest.parquet", "prompts/split.json"):
        (project.made.folder / made).unlink()
    for shard in (project.results / "sources").glob("hubs-*/stats.json"):  # made again, by the commit of lock.json
        shard.unlink()
    project.finish()
    assert sum(prompt.startswith("Old") for prompt in project.requests()) == 8

    project.config["sampling"]["temperature"] = 0.5  # another run, of the same source: its shard is used again
    result = project.finish(HF_ENDPOINT=NOBODY)
    assert files.read_json(project.made.lock)["sources"]["hubs"] == locked
    assert sum(prompt.startswith("Old") for prompt in project.requests()) == 16


def test_runs_bound_to_different_commits_share_no_shard(project: Project, hub: Hub) -> None:
    hub.fault(".*resolve.*jsonl", times=1000, status=404)  # looked up, never fetched
    assert project.run("prompts").code != 0
    first = project.made
    old = files.read_json(first.lock)["sources"]["hubs"]["revision"]
    hub.commit("own/data", {"data/train.jsonl": lines([f"New {n}?" for n in range(8)])})
    hub.faults.clear()
    project.config["sampling"]["temperature"] = 0.5
    project.finish()
    assert files.read_json(project.made.lock)["sources"]["hubs"]["revision"] != old
    del project.config["sampling"]["temperature"]
    project.finish()
    assert project.made.name == first.name
    asked = project.requests()
    assert sum(prompt.startswith("Old") for prompt in asked) == sum(prompt.startswith("New") for prompt in asked) == 8


def test_terms_that_are_accepted_before_the_mix_was_drawn_count(project: Project, hub: Hub) -> None:
    hub.repositories["own/data"].gate = "token of ours"
    hub.commit("own/little", {"data/train.jsonl": lines(["Little?"])})
    project.config["sources"]["hubs"]["substitutes"] = {"little": {"dataset": "own/little"}}
    short = project.run()
    assert short.code != 0 and "can't be read: own/data is gated" in short.output, short.output
    result = project.finish(HF_TOKEN="token of ours")
    assert result.lines("source hubs: it can be read now")
    assert files.read_json(project.made.manifest_json)["sources"][1]["own"] == 8


def test_a_shard_of_other_prompts_is_not_taken(project: Project) -> None:
    project.run("prompts")
    run = project.made
    (questions,) = (project.results / "sources").glob("questions-*")
    table = pl.read_parquet(questions / "prompts.parquet")
    table.with_columns(first_id=pl.col("first_id").reverse()).write_parquet(questions / "prompts.parquet")
    stats = files.read_json(questions / "stats.json")
    files.write_json(
        questions / "stats.json",
        stats
        | {
            "prompts_bytes": (questions / "prompts.parquet").stat().st_size,
            "prompts_sha256": files.sha256_file(questions / "prompts.parquet"),
        },
    )
    for chunk in run.chunks():
        run.prompts(chunk).unlink()
    result = project.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert "holds other prompts than the manifest was drawn from" in result.output
    assert project.requests() == []


def test_what_is_wrong_is_told_before_the_first_job_all_at_once(project: Project, hub: Hub) -> None:
    hub.repositories["own/data"].gate = "secret"
    project.config["sources"] |= {
        "typo": {"dataset": "own/nothing"},
        "split": {"dataset": "own/more", "split": "trian"},
    }
    hub.commit("own/more", {"data/train.jsonl": lines(["A?"])})
    result = project.run()
    assert result.code != 0 and result.jobs == [] and "Traceback" not in result.output, result.output
    told = [line for line in result.output.splitlines() if "sources." in line]
    assert [line.partition("sources.")[2].partition(":")[0] for line in told] == ["hubs", "typo", "split"]
    assert "own/data is gated: accept its terms at https://huggingface.co/datasets/own/data" in told[0]
    assert "Or name datasets that may stand in: `substitutes`" in told[0]
    assert "train" in told[2] and "trian" in told[2]
    assert list(project.results.glob("small-*/lock.json")) == []

    hub.repositories["own/data"].gate = "token of ours"
    del project.config["sources"]["typo"], project.config["sources"]["split"]
    assert project.run("prompts", HF_TOKEN="token of ours").code == 0


def test_a_gated_dataset_is_replaced_by_the_first_substitute_that_can_be_read(project: Project, hub: Hub) -> None:
    hub.repositories["own/data"].gate = "secret"
    hub.commit("own/gated", {"data/train.jsonl": lines(["Never?"])})
    hub.repositories["own/gated"].gate = "secret"
    hub.commit("own/open", {"data/train.jsonl": lines([f"Open {n}?" for n in range(20)])})
    hub.commit("own/unused", {"data/train.jsonl": lines(["Never?"])})
    project.config["sources"]["hubs"]["substitutes"] = {
        name: {"dataset": f"own/{name}"} for name in ("gated", "open", "unused")
    }
    result = project.finish()
    reason = "own/data is gated: accept its terms at https://huggingface.co/datasets/own/data"
    assert result.lines(f"hubs can't be read ({reason}") and "instead: 8 from open" in result.output, result.output
    account = files.read_json(project.made.manifest_json)
    assert account["sources"][1]["unavailable"]["kind"] == "gated"
    assert account["sources"][1]["substituted"] == {"open": 8}
    assert sorted(account["stand_ins"]) == ["gated", "open"]
    assert not hub.asked("own/unused")
    assert sum(prompt.startswith("Open") for prompt in project.requests()) == 8

    project.made.prompts("00001").unlink()  # made again from the manifest, by what it recorded
    for path in [*project.made.chunk_files("00001"), project.made.journal("00001")]:
        path.unlink()
    project.finish(HF_ENDPOINT=NOBODY)


def test_a_source_that_stands_in_for_all_of_another_still_gives_its_own(project: Project, hub: Hub) -> None:
    hub.repositories["own/data"].gate = "secret"
    project.config["sources"]["questions"]["take"] = 5
    later = project.config["sources"].pop("questions")
    project.config["sources"]["hubs"] = {"dataset": "own/data", "take": "all", "substitutes": ["questions"]}
    project.config["sources"]["questions"] = later
    result = project.run("prompts")
    assert result.code == 0, result.output
    account = files.read_json(project.made.manifest_json)
    assert [(row["own"], row["substituted"]) for row in account["sources"]] == [(0, {"questions": 7}), (5, {})]


def test_a_sample_of_parquet_is_read_in_parts(project: Project, hub: Hub, tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [{"instruction": f"Old {n}?", "output": draw.randbytes(200).hex(), "n": n} for n in range(4000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "made", row_group_size=20, write_statistics=False)
    hub.commit("own/data", {"data/train.parquet": (tmp_path / "made").read_bytes()})
    project.config["sources"]["hubs"] = {"dataset": "own/data", "sample": 400, "take": 8}
    result = project.finish()
    size = (tmp_path / "made").stat().st_size
    assert result.lines(
        f"source hubs: 1 file, {size / 1e6:.1f} MB on the hub; reading a sample of 400 of 4,000 rows, about "
    ), result.output
    assert sum(prompt.startswith("Old") for prompt in project.requests()) == 8
    asked = hub.asked("/resolve/")
    assert asked and all(each.range is not None for each in asked)
    assert sum(each.sent for each in hub.log) < size / 2
    assert not list((project.home / "hub").rglob("*.parquet*"))


@pytest.mark.parametrize("fault", ["away", "503"])
def test_a_hub_in_trouble_changes_no_mix(project: Project, hub: Hub, fault: str) -> None:
    hub.commit("own/open", {"data/train.jsonl": lines(["Open?"])})
    project.config["sources"]["hubs"]["substitutes"] = {"open": {"dataset": "own/open"}}
    if fault == "503":
        hub.fault(".*own/data.*", times=1000, status=503)
    result = project.run(HF_ENDPOINT=NOBODY if fault == "away" else hub.url)
    assert result.code != 0 and result.jobs == [] and "Traceback" not in result.output, result.output
    assert result.lines("error: sources.hubs: "), result.output
    assert list(project.results.glob("small-*/lock.json")) == [] and not hub.asked("own/open")
    hub.faults.clear()
    project.finish()

"""What a start says and refuses before its first job: plans, targets, mistakes, other runs."""

import getpass
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.standin.project import Project, Result, Running

# A network and a pip that can't be used, and no GPU.
NOTHING_WORKS = {
    "http_proxy": "http://127.0.0.1:1",
    "https_proxy": "http://127.0.0.1:1",
    "PIP_NO_INDEX": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def own_lines(result: Result) -> list[str]:
    """What is printed beside Snakemake's word on its profile."""
    return [line for line in result.output.splitlines() if line and not line.startswith("Using workflow")]


def test_a_dry_run_from_nothing_shows_all_and_writes_nothing(fresh: Project) -> None:
    result = fresh.run("-n", **NOTHING_WORKS)
    assert result.code == 0, result.output
    assert sorted(job for job in result.jobs if job.startswith("Chunk 0")) == [f"Chunk 0000{n}" for n in range(3)]
    assert {"Source questions", "Source chats", "The target model", "Training shards", "The account"} < set(result.jobs)
    assert not fresh.results.exists()
    assert {path.name for path in fresh.home.iterdir()} == {"envs", "content-hashes.json"}


def test_the_shipped_config_is_planned_anywhere(fresh: Project, clone: Path) -> None:
    """The embedded default: nothing but the clone is there."""
    home = fresh.folder / "nowhere"
    fresh.clone = clone
    result = fresh.run("-n", "-d", str(clone), configfile=None, DRAFTMILL_HOME=str(home), **NOTHING_WORKS)
    assert result.code == 0, result.output
    assert {f"Chunk {n:05d}" for n in range(6)} < set(result.jobs)
    assert {"Publish the manifest", "Publish batch 0000", "Publish the index"} < set(result.jobs)
    assert not (clone / "results").exists()
    assert {path.name for path in home.iterdir()} <= {"content-hashes.json"}


def test_a_target_through_the_link_is_told_its_path(finished: Project) -> None:
    result = finished.run("results/small/completions/00000.jsonl.zst")
    assert result.code != 0
    assert own_lines(result)[1:] == [
        "results/small/completions/00000.jsonl.zst goes through a link, which Snakemake can't; "
        f"say results/{finished.made.name}/completions/00000.jsonl.zst"
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"smapling": {}},
            ["smapling: unknown key; did you mean sampling? allowed here: name, results"],
        ),
        ({"name": "Small Run"}, ["name: 'Small Run' is not allowed; allowed: lower-case letters"]),
        ({"chunks": {"count": 3, "size": 5}}, ["chunks: give `size` or `count`, not both"]),
        ({"sampling": {"temperature": 9}}, ["sampling.temperature: 9 should be less than or equal to 2"]),
        ({"servers": {"engine": "vllm"}}, ["servers.engine: 'vllm' should be 'sglang' or 'sglang-cpu'"]),
        ({"servers": {"args": {"api-key": "x"}}}, ["servers.args: 'api-key' looks like a secret"]),
        ({"servers": {"urls": ["http://user:pass@host"]}}, ["servers.urls"]),
        (
            {"sources": {"questions": {"path": "data/nowhere.jsonl", "shape": "messages"}}},
            ["sources.questions.path: data/nowhere.jsonl: no such file"],
        ),
        (
            {"sampling": {"top_p": 0}, "training": {"max_tokens": "many"}},
            ["sampling.top_p:", "training.max_tokens: 'many' should be a whole number"],
        ),
    ],
    ids=["key", "name", "both", "range", "choice", "secret", "url", "file", "two"],
)
def test_a_mistake_in_the_config_is_one_plain_line(fresh: Project, changes: dict[str, Any], says: list[str]) -> None:
    fresh.config |= changes
    result = fresh.run()
    assert result.code != 0
    lines = own_lines(result)
    assert len(lines) == len(says), result.output
    where = f"{fresh.folder}/my.yaml: "
    assert all(line.startswith(where + start) for line, start in zip(lines, says, strict=True)), result.output
    assert not fresh.results.exists()


def test_a_key_that_stands_twice_is_one_plain_line(fresh: Project) -> None:
    path = fresh.folder / "twice.yaml"
    path.write_text("name: x\nmodel: {path: model}\nsources: {a: {path: x}, a: {path: y}}\n")
    argv = [str(path) if part.endswith("my.yaml") else part for part in fresh.command("-n")]
    result = Running(argv, fresh.folder, fresh.environ(), fresh.folder / "twice.log").wait()
    assert result.code != 0
    assert own_lines(result) == [f"{path}: sources.a (line 3) stands twice; the first would be lost"]


def test_a_second_config_file_overlays_the_first(finished: Project) -> None:
    """Keys below a section too: the sources and max_tokens of the first stay."""
    (finished.folder / "over.yaml").write_text("sampling: {temperature: 0.2}\n")
    argv = [*finished.command("-n"), "over.yaml"]
    result = Running(argv, finished.folder, finished.environ(), finished.folder / "over.log").wait()
    assert result.code == 0, result.output
    assert len(result.lines(f"{finished.made.name} has 24 completions and differs in: sampling.temperature.")) == 1


def test_keep_incomplete_is_refused(fresh: Project) -> None:
    result = fresh.run("--keep-incomplete")
    assert result.code != 0 and result.jobs == [], result.output
    assert len(result.lines("error: --keep-incomplete makes a file that a crash cut short pass")) == 1
    assert "Traceback" not in result.output
    assert not fresh.results.exists()


def test_a_second_run_is_refused_and_told_by_whom(prepared: Project) -> None:
    first = prepared.start(STANDIN_FAULTS='{"slow_on": {"Question 7?": 30}}')  # long enough for three more starts
    prepared.wait_for_answers(1)
    run = prepared.made.name

    second = prepared.run()
    assert second.code != 0 and second.jobs == [], second.output
    whose = f"process {first.pid} of {getpass.getuser()} on {socket.gethostname()}"
    says = f"error: results is in use by run {run}: {whose}"
    assert len(second.lines(says)) == 1 and "Traceback" not in second.output, second.output

    planned = prepared.run("-n")
    assert planned.code == 0 and "The account" in planned.jobs, planned.output

    prepared.config["sampling"]["temperature"] = 0.1  # another run of the same results folder
    assert len(prepared.run().lines(says)) == 1
    del prepared.config["sampling"]["temperature"]

    assert first.wait().code == 0
    prepared.audit()
    assert prepared.made.name == run and len(prepared.requests()) == 24


def test_cores_that_cut_the_leases_are_told(fresh: Project) -> None:
    fresh.config["servers"]["leases"] = 9
    result = fresh.run("-n")
    assert result.lines("4 of 9 leases: Snakemake has no more workers at --cores 2; --cores 7 gives them all")
    fresh.config["servers"]["leases"] = 4
    assert "leases:" not in fresh.run("-n").output


def test_chunks_are_dispatched_in_order(fresh: Project) -> None:
    fresh.config |= {"chunks": {"count": 9}}
    fresh.config["servers"] |= {"leases": 3}
    order = [int(job.split()[1]) for job in fresh.finish().jobs if job.startswith("Chunk 0")]
    assert sorted(order) == list(range(9))
    # Three at a time; those that start together are in no order.
    assert all(abs(place - number) < 3 for place, number in enumerate(order)), order


def test_a_protected_prefix_is_refused_in_the_plan(finished: Project) -> None:
    """Also one inside the run's own folder of the bucket, which no config alone can know."""
    name = finished.made.name
    finished.config["publish"] = {"store": "s3", "bucket": "draftmill", "protect": [f"{name}/completions/"]}
    result = finished.run("-n")
    assert result.code != 0 and result.jobs == [], result.output
    assert f"publish: {name}/ meets the protected prefix '{name}/completions/'; choose another" in result.output

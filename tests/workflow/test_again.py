"""A finished run: what the same line does again, and what nothing may make it do."""

from pathlib import Path

import pytest

from tests.standin.project import Project, Result
from workflow_scripts import files

NOTHING = "Nothing to be done"


def nothing_done(project: Project, before: dict[str, tuple[int, int]], result: Result) -> bool:
    assert result.code == 0, result.output
    assert NOTHING in result.output and result.jobs == [], result.output
    assert project.tree() == before
    return True


def test_a_whole_run_from_nothing(finished: Project) -> None:
    first = Result(0, (finished.folder / "snakemake.1.log").read_text())
    assert [job for job in first.jobs if job.startswith("Chunk")] and len(first.jobs) == 13
    # The profile's line is Snakemake's own; ours is the next.
    assert first.output.splitlines()[1] == f"run {finished.made.name} in results/{finished.made.name}"
    assert sorted(finished.requests()) == sorted(
        [f"Question {n}?" for n in range(12)] + [f"Chat {n}?" for n in range(12)]
    )
    assert finished.server_starts() == 1
    assert "  prompts               24\n" in first.output and "  failures              0\n" in first.output
    assert files.read_json(finished.results / "small" / "summary.json")["completions"] == 24


def test_the_same_line_again_does_nothing(finished: Project) -> None:
    before = finished.tree()
    assert nothing_done(finished, before, finished.run())
    assert nothing_done(finished, before, finished.run("-n"))
    assert finished.server_starts() == 1


@pytest.mark.parametrize("end", ["jsonl.zst", "failures.jsonl.zst", "json"])
def test_a_deleted_file_of_a_chunk_is_made_again_from_its_journal(finished: Project, end: str) -> None:
    deleted = finished.made.folder / "completions" / f"00001.{end}"
    before, content = finished.tree(finished.made.folder / "completions"), deleted.read_bytes()
    shards = [files.sha256_file(path) for path in finished.made.folder.glob("training/*/*.parquet")]
    deleted.unlink()
    result = finished.finish()
    assert [job for job in result.jobs if job.startswith(("Chunk", "Source", "The"))] == [
        "Chunk 00001",
        "The account",
        "The report",
    ]
    assert deleted.read_bytes() == content
    after = finished.tree(finished.made.folder / "completions")
    assert {name for name in after if after[name] != before[name]} <= {
        f"00001.{kind}" for kind in ("jsonl.zst", "failures.jsonl.zst", "json")
    }
    assert [files.sha256_file(path) for path in finished.made.folder.glob("training/*/*.parquet")] == shards
    assert finished.server_starts() == 1 and len(finished.requests()) == 24
    assert nothing_done(finished, finished.tree(), finished.run())


def test_a_lost_chunk_with_its_journal_and_prompts_is_answered_again(finished: Project) -> None:
    run = finished.made
    before, prompts = finished.tree(run.folder / "completions"), run.prompts("00001").read_bytes()
    for path in [*run.chunk_files("00001"), run.journal("00001"), run.prompts("00001")]:
        path.unlink()
    result = finished.finish()
    assert [job for job in result.jobs if job.startswith("Chunk")] == ["Chunk 00001"]
    assert "chunk 00001: its prompts file is gone; made again from the manifest" in result.output
    assert run.prompts("00001").read_bytes() == prompts
    after = finished.tree(run.folder / "completions")
    assert all(after[name] == before[name] for name in before if not name.startswith("00001"))
    assert finished.server_starts() == 2 and len(finished.requests()) == 24 + 8


def test_a_deleted_prompts_file_redoes_nothing(finished: Project) -> None:
    finished.made.prompts("00001").unlink()
    assert nothing_done(finished, finished.tree(), finished.run())


def test_one_chunk_by_its_file_name_from_nothing(fresh: Project, finished_once: Project) -> None:
    name = finished_once.made.name  # the same content, so the same run
    result = fresh.run(f"results/{name}/completions/00002.jsonl.zst")
    assert result.code == 0, result.output
    assert fresh.made.name == name
    assert sorted(path.name for path in (fresh.made.folder / "completions").iterdir()) == [
        "00002.failures.jsonl.zst",
        "00002.json",
        "00002.jsonl.zst",
    ]
    assert len(fresh.requests()) == 8
    assert [job for job in fresh.finish().jobs if job.startswith("Chunk")] != []
    assert sorted(fresh.requests()) == sorted(finished_once.requests())


@pytest.mark.parametrize("profile", ["default", "none", "other"])
def test_new_pins_comments_and_another_cache_redo_nothing(
    finished: Project, clone: Path, tmp_path: Path, profile: str
) -> None:
    for path in [clone / "Snakefile", *clone.glob("rules/*.smk"), *clone.glob("workflow_scripts/*/*.py")]:
        with path.open("a") as file:
            file.write("\n# another comment\n")
    for name, old, new in (
        ("envs/sglang-cpu.txt", "==", "==9"),
        ("envs/pipeline.yaml", "aiohttp==", "aiohttp==9"),
        ("rules/completions.smk", '    """Answer one chunk', '    # a comment\n    """Answer one chunk'),
    ):
        text = (clone / name).read_text()
        assert old in text
        (clone / name).write_text(text.replace(old, new, 1))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("printshellcmds: true\n")
    before = finished.tree()
    finished.clone = clone
    result = finished.run(
        DRAFTMILL_HOME=str(tmp_path / "another home"),
        profile={"default": None, "none": "none", "other": str(tmp_path / "other")}[profile],
    )
    assert nothing_done(finished, before, result)
    assert not (tmp_path / "another home" / "envs").exists()


def test_a_new_temperature_is_a_new_run_and_the_old_one_stays(finished: Project) -> None:
    old, before = finished.made.name, finished.tree(finished.made.folder)
    shards = finished.tree(finished.results / "sources")
    finished.config["sampling"]["temperature"] = 0.2
    planned = finished.run("-n")
    says = f"{old} has 24 completions and differs in: sampling.temperature. They would be made again here"
    assert planned.code == 0 and len(planned.lines(says)) == 1, planned.output
    assert finished.made.name == old
    result = finished.finish()
    assert len(result.lines(says)) == 1
    assert finished.made.name != old and len(finished.requests()) == 48
    assert finished.tree(finished.results / "sources") == shards
    assert finished.tree(finished.results / old) == before

    del finished.config["sampling"]["temperature"]
    back = finished.run()
    assert back.code == 0 and NOTHING in back.output and len(back.lines(f"run {old} in")) == 1


def test_a_performance_setting_changes_nothing(finished: Project) -> None:
    before = finished.tree()
    finished.config["servers"] |= {"leases": 1, "drain": 5, "args": {"max-running-requests": 2, "log-level": "info"}}
    assert nothing_done(finished, before, finished.run())


def test_a_moved_results_folder_is_still_finished(finished: Project) -> None:
    finished.results.rename(finished.folder / "moved")
    finished.config["results"] = "moved"
    result = finished.run()
    assert result.code == 0 and NOTHING in result.output, result.output


def test_a_lost_training_shard_is_exported_again(finished: Project) -> None:
    (shard,) = finished.made.folder.glob("training/*/train-00000.parquet")
    before = shard.read_bytes()
    shard.unlink()
    result = finished.finish()
    assert result.jobs == ["Training shards", "The account", "The report", "All is there"]
    assert shard.read_bytes() == before


def test_a_manifest_that_is_gone_is_missed_by_every_target(finished: Project) -> None:
    """What is made from it takes it as ancient(), and would not say. The same one is drawn: nothing is asked again."""
    manifest = finished.made.manifest
    before = manifest.read_bytes()
    manifest.unlink()
    for targets in (["-n", "completions"], ["-n", "training"], ["prompts"]):
        result = finished.run(*targets)
        assert result.code == 0 and "The prompt manifest" in result.jobs, result.output
        assert not [job for job in result.jobs if job.startswith(("Chunk ", "Training"))], result.output
    assert manifest.read_bytes() == before
    finished.audit()

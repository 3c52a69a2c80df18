"""From sources to chunks: takes and totals, rejected rows, a mix that falls short."""

import re
from collections import Counter
from typing import Any

import polars as pl

from tests.standin.project import Project, Result
from workflow_scripts import files


def taken(project: Project) -> dict[str, int]:
    return {row["source"]: row["taken"] for row in files.read_json(project.made.manifest_json)["sources"]}


def prompts(project: Project) -> list[Any]:
    run = project.made
    return [row for chunk in run.chunks() for row in files.read_jsonl_zst(run.prompts(chunk))]


def test_a_total_scales_the_takes_down_and_says_so(fresh: Project) -> None:
    fresh.config["sources"]["questions"]["take"] = 12
    fresh.config["sources"]["chats"]["take"] = 8
    fresh.config["prompts"] = {"total": 9}
    fresh.config["chunks"] = {"size": 4}
    result = fresh.run("prompts")
    assert result.code == 0, result.output
    assert taken(fresh) == {"questions": 5, "chats": 4}  # 5.4 and 3.6
    assert Counter(row["source"] for row in prompts(fresh)) == taken(fresh)
    (line,) = result.lines("questions ")
    assert line.split()[1:] == ["12", "12", "0", "5"]
    assert fresh.made.chunks() == ["00000", "00001", "00002"]
    assert not list(fresh.made.folder.glob("servers/*")) and fresh.requests() == []


def test_rows_that_are_no_prompts_are_rejected_and_repeats_taken_once(fresh: Project) -> None:
    fresh.write_rows(
        "questions",
        [{"prompt": f"Question {n}?", "response": ""} for n in range(12)]
        + [{"prompt": "Chat 3?", "response": ""}, {"prompt": " ", "response": ""}],
    )
    with (fresh.folder / "data" / "questions.jsonl").open("a") as file:
        file.write("{half a line\n")
    result = fresh.finish()
    assert "source questions: 13 prompts of 15 rows, 2 rejected" in result.output
    (rejects,) = fresh.results.glob("sources/questions-*/rejects.jsonl.zst")
    assert [(row["file"], row["row"]) for row in files.read_jsonl_zst(rejects)] == [
        ("questions.jsonl", 13),
        ("questions.jsonl", 14),
    ]
    assert all(row["reason"] for row in files.read_jsonl_zst(rejects))
    # The earlier source keeps the prompt that both hold.
    assert taken(fresh) == {"questions": 13, "chats": 11}
    assert Counter(fresh.requests())["Chat 3?"] == 1 and len(fresh.requests()) == 24


def test_a_short_mix_ends_before_any_server(fresh: Project) -> None:
    fresh.config["sources"]["questions"]["take"] = 10
    fresh.config["sources"]["chats"]["take"] = 30
    result = fresh.run()
    assert result.code != 0
    assert "Traceback" not in result.output, result.output
    assert len(result.lines("error: the sources hold 22 of the 40 prompts asked:")) == 1
    assert [line.split()[1:] for line in result.lines("chats ")] == [["30", "12", "0", "12"]]
    assert "set prompts.allow_short: true" in result.output
    assert not [job for job in result.jobs if job.startswith("Chunk")]
    assert not list(fresh.made.folder.glob("servers/*")) and not fresh.made.manifest.exists()

    fresh.config["prompts"] = {"allow_short": True}
    fresh.finish()
    assert taken(fresh) == {"questions": 10, "chats": 12}


def test_chunks_without_prompts_are_valid(fresh: Project) -> None:
    fresh.write_rows("questions", [{"prompt": "Only one?", "response": ""}])
    del fresh.config["sources"]["chats"]
    fresh.finish()
    run = fresh.made
    assert [files.read_json(run.sidecar(chunk))["completions"]["rows"] for chunk in run.chunks()] == [1, 0, 0]


def test_several_samples_of_each_prompt(fresh: Project) -> None:
    fresh.config["sampling"] |= {"n": 2}
    fresh.config["sources"]["chats"]["take"] = 3
    fresh.finish()
    assert len(fresh.requests()) == 30 and set(Counter(fresh.requests()).values()) == {2}


def test_what_falls_short_is_made_up_for_by_its_substitutes_and_the_rest_by_fill(fresh: Project) -> None:
    more = [{"prompt": f"More {n}?", "response": "Old."} for n in range(10)]
    fresh.write_rows("more", [*more, {"prompt": "Question 3?", "response": "Old."}])
    fresh.config["sources"] |= {"more": {"path": "data/more.jsonl", "shape": "prompt_response", "take": 1}}
    fresh.config["sources"]["questions"] |= {"take": 15, "substitutes": ["more"]}
    fresh.config["sources"]["chats"] |= {"take": 8}
    fresh.config["prompts"] = {"total": 28, "fill": ["more", "chats"]}
    result = fresh.finish()
    account = files.read_json(fresh.made.manifest_json)
    by_source = {row["source"]: row for row in account["sources"]}
    assert (by_source["questions"]["own"], by_source["questions"]["substituted"]) == (12, {"more": 3})
    assert (by_source["chats"]["own"], by_source["more"]["own"]) == (8, 1)
    assert account["filled"] == {"more": 4} and account["taken"] == 28
    assert result.lines("questions fell short: 12 of 15; the rest: 3 from more")
    assert "  more stands in " in result.output and "more fills up " in result.output
    counts = pl.read_parquet(fresh.made.manifest)["source"].value_counts()
    assert dict(counts.iter_rows()) == {"questions": 12, "chats": 8, "more": 8}


def reads(result: Result) -> list[str]:
    return re.findall(r"^source (\w+): reading", result.output, flags=re.MULTILINE)


def test_a_changed_take_reads_no_source_again_and_a_new_source_is_the_only_one_read(fresh: Project) -> None:
    shards = fresh.results / "sources"
    assert fresh.run("prompts").code == 0
    before, folder = fresh.tree(shards), fresh.made.folder
    fresh.config["sources"]["questions"]["take"] = 5
    result = fresh.run("prompts")
    assert result.code == 0 and fresh.made.folder != folder
    assert "Source questions" in result.jobs and reads(result) == []
    assert fresh.tree(shards) == before and taken(fresh) == {"questions": 5, "chats": 12}

    fresh.write_rows("more", [{"prompt": "More?", "response": "Old."}])
    fresh.config["sources"]["more"] = {"path": "data/more.jsonl", "shape": "prompt_response"}
    result = fresh.run("prompts")
    assert result.code == 0, result.output
    assert reads(result) == ["more"]
    assert before.items() < fresh.tree(shards).items()
    assert taken(fresh) == {"questions": 5, "chats": 12, "more": 1}


def test_near_duplicates_are_dropped_on_file_and_the_evaluation_set_is_apart(fresh: Project) -> None:
    story = "Tell me a story of a fox, a crow and a very large piece of cheese"
    fresh.write_rows("questions", [{"prompt": f"{n} {story * 2}?", "response": ""} for n in range(1, 9)])
    fresh.config["prompts"] = {"dedupe": {"near": 0.8}, "eval": 0.5}
    result = fresh.finish()
    (line,) = result.lines("set apart for evaluation: ")
    assert " of 13 prompts, by first_id: the same in every run" in line and "smaller shares are part of it" in line
    dropped = pl.read_parquet(fresh.made.dropped)
    manifest = pl.read_parquet(fresh.made.manifest)
    assert dropped["reason"].to_list() == ["near_duplicate"] * 7 and len(manifest) == 13
    assert set(dropped["repeats"]) == set(manifest.filter(pl.col("source") == "questions")["prompt_id"])
    (index,) = fresh.made.folder.glob("training/*/training.json")
    by_name: dict[str, set[str]] = {"train": set(), "eval": set()}
    for entry in files.read_json(index)["files"]:
        by_name[entry["path"].split("-")[0]] |= set(pl.read_parquet(index.parent / entry["path"])["prompt_id"])
    splits = manifest.group_by("split").agg("prompt_id")
    assert by_name == {split: set(ids) for split, ids in splits.iter_rows()}
    assert all(by_name.values())

"""Earlier prompts and benchmarks at parse: which files are meant, what of them is in RUN, which mistakes are told."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts import planning, recovery, results_lock, start
from workflow_scripts.errors import PlainError
from workflow_scripts.identity import ContentHashes
from workflow_scripts.prompts import inputs
from workflow_scripts.prompts.inputs import benchmark_files, checked_files, choose, excluded_files
from workflow_scripts.prompts.locking import lock_inputs

RUN_FILES = [
    "run.yaml",
    "lock.json",
    "manifest.parquet",
    "manifest.json",
    "dropped.parquet",
    "prompts/00000.jsonl.zst",
    "prompts/split.json",
    "completions/00000.jsonl.zst",
    "completions/00000.failures.jsonl.zst",
    "completions/00000.json",
    "training/ab/train-00000.parquet",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    write("a.jsonl", "{}")
    return tmp_path


def write(path: str, text: str = "x") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def plan(**prompts: Any) -> planning.Plan:
    values = {"name": "m", "sources": {"a": {"path": "a.jsonl"}}, "model": {"path": "o/m"}, "prompts": prompts}
    return planning.plan(values, "c")


# --- which files ---


def test_a_run_counts_by_its_manifest_alone() -> None:
    assert choose(RUN_FILES, "w") == ["manifest.parquet"]
    nested = [f"demo/first/{name}" for name in RUN_FILES] + ["demo/more.jsonl", "demo/notes.md"]
    assert choose(nested, "w") == ["demo/first/manifest.parquet", "demo/more.jsonl"]


def test_folders_of_chunks_count_without_failures_and_sidecars() -> None:
    names = ["00000.jsonl.zst", "00000.r1.jsonl.zst", "00000.json", "00000.failures.jsonl.zst", "00000.r1.json"]
    assert choose([*names, "00000.r1.failures.jsonl.zst"], "w") == ["00000.jsonl.zst", "00000.r1.jsonl.zst"]
    assert choose(["00000.jsonl.zst", "split.json"], "w") == ["00000.jsonl.zst"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["run.yaml", "lock.json"], r"^w is a run's folder without manifest\.parquet"),
        (["demo/owner.json", "demo/lock.json"], r"^w/demo is a run's folder without manifest\.parquet"),
        (["a-1/prompts.parquet", "a-1/rejects.jsonl.zst", "a-1/stats.json"], "^w/a-1 is a source's shard"),
        (["notes.md"], "^w holds no prompts"),
        ([], "^w holds no prompts"),
    ],
)
def test_what_tells_no_prompts_is_said(names: list[str], message: str) -> None:
    with pytest.raises(PlainError, match=message):
        choose(names, "w")


def test_folders_files_and_globs_are_found_once(project: Path) -> None:
    for name in RUN_FILES:
        write(f"results/first-11111111/{name}")
        write(f"results/second-11111111/{name}")
    (project / "results" / "first").symlink_to("first-11111111")
    write("old/b.jsonl")
    write("old/.hidden.jsonl")
    assert [str(file.path) for file in excluded_files("results/first*")] == ["results/first-11111111/manifest.parquet"]
    with pytest.raises(PlainError, match=r"results/first is a link .*: results/first-11111111$"):
        excluded_files("results/first")
    found = excluded_files("results/*-11111111")
    assert [str(file.path) for file in found] == [
        f"results/{name}-11111111/manifest.parquet" for name in ("first", "second")
    ]
    assert excluded_files("old") == [("b.jsonl", Path("old/b.jsonl"))]
    assert excluded_files("old/*.jsonl") == excluded_files("old/b.jsonl") == excluded_files("old")
    write("old/c[1].jsonl")
    assert excluded_files("old/c[1].jsonl") == [("c[1].jsonl", Path("old/c[1].jsonl"))]


def test_a_glob_finds_what_the_folder_holds(project: Path) -> None:
    for name in RUN_FILES:
        write(f"results/first-11111111/{name}")
    for folder in ("prompts", "completions"):
        [found] = excluded_files(f"results/first-11111111/{folder}/*")
        assert found == ("00000.jsonl.zst", Path(f"results/first-11111111/{folder}/00000.jsonl.zst"))
        assert [found] == excluded_files(f"results/first-11111111/{folder}")
    with pytest.raises(PlainError, match="holds no prompts"):
        excluded_files("results/first-11111111/completions/*.json")


def test_linked_folders_are_read_and_dangling_links_are_not(project: Path) -> None:
    write("elsewhere/b.jsonl")
    write("old/a.jsonl")
    (project / "old" / "linked").symlink_to(project / "elsewhere")
    (project / "old" / "round").symlink_to(project / "old")
    (project / "old" / "dangling.jsonl").symlink_to("nowhere")
    (project / "old" / "itself.jsonl").symlink_to("itself.jsonl")
    (project / "mine").symlink_to("old")
    assert [file.name for file in excluded_files("old")] == ["a.jsonl", "linked/b.jsonl"]
    assert [file.name for file in benchmark_files("old")] == ["a.jsonl", "linked/b.jsonl"]
    assert [file.name for file in excluded_files("mine")] == ["a.jsonl", "linked/b.jsonl"]


def test_a_path_through_the_moving_link_is_refused(project: Path) -> None:
    write("results/first-1a2b3c4d/manifest.parquet")
    write("results/first-1a2b3c4d/run.yaml")
    (project / "results" / "first").symlink_to("first-1a2b3c4d")
    (project / "old").symlink_to("results/first-1a2b3c4d")
    with pytest.raises(PlainError, match=r"results/first is a link .*: results/first-1a2b3c4d$"):
        excluded_files("results/first/manifest.parquet")
    found = excluded_files("results/*/manifest.parquet")
    assert [str(file.path) for file in found] == ["results/first-1a2b3c4d/manifest.parquet"]
    assert [str(file.path) for file in excluded_files("old")] == ["old/manifest.parquet"]


@pytest.mark.parametrize("entry", ["x" * 300, "x" * 5000, "a\0b"])
def test_what_can_be_no_name_is_not_there(project: Path, entry: str) -> None:
    with pytest.raises(PlainError, match="no such file or folder"):
        excluded_files(entry)


@pytest.mark.parametrize(
    ("entry", "finds"),
    [
        ("results", True),
        (".", True),
        ("results/*", True),
        ("./results/*-*", True),
        ("results/**/*.parquet", True),
        ("results/*/manifest.parquet", True),
        ("results/*/prompts", True),
        ("results/*/training", False),
        ("results/other-*", False),
        ("results/other-11111111", False),
        ("**/old/*.jsonl", False),
    ],
)
def test_what_would_find_the_run_itself_is_refused(project: Path, entry: str, finds: bool) -> None:
    write("results/other-11111111/manifest.parquet")
    write("results/other-11111111/prompts/b.jsonl")
    write("results/other-11111111/training/b.jsonl")
    write("results/other-11111111/run.yaml")
    write("old/b.jsonl")
    try:
        named = plan(exclude=[entry]).run.name
    except PlainError as error:
        assert finds and "would find this run too (results/m-" in str(error)
    else:
        assert not finds and named.startswith("m-")


@pytest.mark.parametrize("entry", ["link/*", "here/link/*-*/manifest.parquet", "link/../odd [1]/*"])
def test_a_pattern_through_a_link_finds_the_run_too(project: Path, entry: str) -> None:
    write("odd [1]/other-11111111/manifest.parquet")
    (project / "link").symlink_to("odd [1]")
    (project / "here").symlink_to(".")
    values = {"name": "m", "results": "link", "sources": {"a": {"path": "a.jsonl"}}, "model": {"path": "o/m"}}
    planning.plan(values | {"prompts": {"exclude": ["link/other-*"]}}, "c")
    with pytest.raises(PlainError, match="would find this run too" if "[" not in entry else "no such file"):
        planning.plan(values | {"prompts": {"exclude": [entry]}}, "c")


def test_benchmarks_are_files_of_five_kinds(project: Path) -> None:
    for name in ("a.jsonl", "b/c.parquet", "d.csv", "e.txt", "f.json", "README.md", "b/readme.txt", "LICENSE.txt"):
        write(f"benchmarks/{name}")
    write("benchmarks/b/dataset_infos.json")
    assert [file.name for file in benchmark_files("benchmarks")] == [
        "a.jsonl",
        "b/c.parquet",
        "d.csv",
        "e.txt",
        "f.json",
    ]
    assert [file.name for file in benchmark_files("benchmarks/*")] == [
        "a.jsonl",
        "c.parquet",
        "d.csv",
        "e.txt",
        "f.json",
    ]
    with pytest.raises(PlainError, match=r"README\.md can't be read"):
        benchmark_files("benchmarks/README.md")
    with pytest.raises(PlainError, match=r"benchmarks/\*\.md holds no"):
        benchmark_files("benchmarks/*.md")


# --- the plan ---


def test_mistakes_are_told_at_parse_with_their_key(project: Path) -> None:
    write("results/begun-1/run.yaml")
    write("notes.md")
    with pytest.raises(PlainError) as caught:
        plan(exclude=["nowhere", "results/begun-1", "notes.md"], decontaminate=["none/*.jsonl", "notes.md"])
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("c: prompts.exclude: nowhere: no such file or folder")
    assert lines[1].startswith("c: prompts.exclude: results/begun-1 is a run's folder without manifest.parquet")
    assert lines[2].startswith("c: prompts.exclude: notes.md can't be read")
    assert lines[3].startswith("c: prompts.decontaminate: none/*.jsonl: no such file")
    assert lines[4].startswith("c: prompts.decontaminate: notes.md can't be read")
    assert len(lines) == 5


@pytest.mark.parametrize("key", ["exclude", "decontaminate"])
def test_inputs_count_by_content_wherever_they_lie(project: Path, key: str) -> None:
    write("old/b.jsonl", "1")
    named = plan(**{key: ["old/*.jsonl"]}).run.name
    assert named != plan().run.name
    write("moved/b.jsonl", "1")
    assert plan(**{key: ["moved"]}).run.name == named
    write("moved/b.jsonl", "2")
    assert plan(**{key: ["moved"]}).run.name != named
    assert plan(**{key: []}).run.name == plan().run.name


@pytest.mark.parametrize("key", ["exclude", "decontaminate"])
def test_neither_the_order_of_the_entries_counts_nor_that_one_stands_twice(project: Path, key: str) -> None:
    for name in ("b", "c"):
        write(f"old/{name}.jsonl", name)
    write("more/d.jsonl", "d")
    entries = ["old", "more/d.jsonl", "old/c.jsonl"] + (["s3://b/one/", "s3://a/two/"] if key == "exclude" else [])
    named = {plan(**{key: list(order)}).run.name for order in (*permutations(entries), [*entries, "old/*.jsonl"])}
    assert len(named) == 1
    assert plan(**{key: entries[:-1]}).run.name not in named
    find = inputs.excluded_files if key == "exclude" else inputs.benchmark_files
    recorded = plan(**{key: entries}).inputs[key][::-1]  # of another order, or another machine
    for entry in entries[:3]:
        assert checked_files(key, entry, recorded, find, ContentHashes()) == find(entry)
    write("old/c.jsonl", "other")
    with pytest.raises(PlainError, match=r"old/c\.jsonl has changed since this run began"):
        checked_files(key, "old", recorded, find, ContentHashes())


def test_settings_and_prefixes_are_in_run(project: Path) -> None:
    write("b.jsonl", "1")
    names = [
        plan(**prompts).run.name
        for prompts in (
            {},
            {"decontaminate": ["b.jsonl"]},
            {"decontaminate": {"files": ["b.jsonl"], "ngram": 8}},
            {"decontaminate": {"files": ["b.jsonl"], "columns": ["question"]}},
            {"decontaminate": {"files": ["b.jsonl"], "threshold": 0.5}},
            {"exclude": ["b.jsonl"]},
            {"exclude": ["s3://b/one/"]},
            {"exclude": ["s3://b/two/"]},
            {"max_prompt_tokens": 100},
        )
    ]
    assert len(set(names)) == len(names)
    assert plan(decontaminate={"files": ["b.jsonl"], "ngram": 13}).run.name == names[1]


def test_a_tokenizer_counts_by_content(project: Path) -> None:
    values = {"name": "m", "sources": {"a": {"path": "a.jsonl"}}, "model": {"path": "o/m"}}

    def name(tokenizer: str) -> str:
        return planning.plan({**values, "model": {"path": "o/m", "tokenizer": tokenizer}}, "c").run.name

    write("one/tokenizer.json", "1")
    write("two/tokenizer.json", "1")
    assert name("one") == name("two") != planning.plan(values, "c").run.name
    write("two/tokenizer.json", "2")
    assert len({name("one"), name("two"), name("org/other"), name("none")}) == 4
    with pytest.raises(PlainError, match=r"c: model\.tokenizer: nowhere: no such folder"):
        name("./nowhere")


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({"exclude": ["old/score.jsonl"]}, r"old/score\.jsonl: neither first_id nor a conversation"),
        ({"exclude": ["old/half.json"]}, r"old/half\.json"),
        ({"decontaminate": ["old/empty.jsonl"]}, r"old/empty\.jsonl holds no rows"),
        ({"decontaminate": {"files": ["old/score.jsonl"], "columns": ["q"]}}, "has no column q; it has score"),
    ],
)
def test_inputs_are_looked_at_before_the_first_job(project: Path, prompts: dict[str, Any], message: str) -> None:
    write("old/score.jsonl", '{"score": 1}\n')
    write("old/half.json", '{\n  "score": 1,\n')
    write("old/empty.jsonl", "")
    planned = plan(**prompts)
    with pytest.raises(PlainError, match=message):
        lock_inputs(planned.run, planned.inputs)


def test_a_start_that_fails_leaves_the_link_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("old/score.jsonl", '{"score": 1}\n')
    monkeypatch.setattr(results_lock, "take", lambda results, run: None)
    monkeypatch.setattr(start, "_pass_on_sigterm", lambda: None)
    monkeypatch.setattr(recovery, "on_clock_set_back", lambda then: None)
    good = plan()
    start.begin(good, set(), keep_incomplete=False)
    link = project / "results" / "m"
    assert link.readlink() == Path(good.run.name)
    with pytest.raises(PlainError, match="neither first_id nor a conversation"):
        start.begin(plan(exclude=["old"]), set(), keep_incomplete=False)
    assert link.readlink() == Path(good.run.name)


# --- the job ---


def test_a_job_takes_the_recorded_bytes_only(project: Path) -> None:
    write("old/b.jsonl", "1")
    recorded = plan(exclude=["old"]).inputs["exclude"]
    hashes = ContentHashes()
    assert checked_files("exclude", "old", recorded, inputs.excluded_files, hashes) == excluded_files("old")
    write("old/b.jsonl", "other")
    with pytest.raises(PlainError, match=r"prompts\.exclude: old/b\.jsonl has changed since this run began"):
        checked_files("exclude", "old", recorded, inputs.excluded_files, hashes)
    write("old/c.jsonl")
    with pytest.raises(PlainError, match="old holds other files than when this run began"):
        checked_files("exclude", "old", recorded, inputs.excluded_files, hashes)
    (project / "old" / "b.jsonl").unlink()
    (project / "old" / "c.jsonl").unlink()
    with pytest.raises(PlainError, match=r"old holds no prompts.*put it back"):
        checked_files("exclude", "old", recorded, inputs.excluded_files, hashes)

"""The report's data, and that no text in it can be anything but text."""

import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.standin.made_run import BEGAN, SOURCES, make
from workflow_scripts import files
from workflow_scripts.completions import progress
from workflow_scripts.errors import PlainError
from workflow_scripts.reporting import conversations, curves, report
from workflow_scripts.reporting.provenance import provenance
from workflow_scripts.run import Run

VENDOR = Path(report.__file__).parent / "page" / "vendor"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make(tmp_path_factory.mktemp("made"), prompts=600, nasty=True)


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return report.report(run, []).decode()


@pytest.fixture(scope="module")
def lines(run: Run) -> list[Any]:
    return progress.parse((run.folder / "progress.jsonl").read_bytes())


class Tags(HTMLParser):
    """What a browser would take for elements, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_texts_are_text(page: str) -> None:
    found = Tags(page)
    assert found.tags.count("script") == 4 and "img" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "src"]
    text = "".join(found.text)
    assert "<script>document.title='owned'</script>" in text and "<U+202E>txt.exe" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x1b\x9b\u2028]", page)


def test_the_policy_names_the_scripts(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None and "default-src 'none'" in policy[1]
    assert policy[1].count("sha256-") == 3 and "unsafe-eval" not in policy[1]
    assert not re.search(r"script-src[^;]*unsafe", policy[1])


def test_it_is_small_and_whole(page: str, run: Run) -> None:
    assert len(page.encode()) < 5e6
    summary = files.read_json(run.summary)
    for key in ("prompts", "completions", "failures", "output_tokens"):
        assert f"<dd>{summary[key]:,}</dd>" in page
    assert "org/Model-27B" in page and "c" * 40 in page and "server 1: more and more turns" in page


def test_it_says_what_was_dropped_and_what_windows_cost(page: str) -> None:
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", page)
    told = ["class cut_in_thinking", "9", "9,000", "cut at max_tokens", "-", "12"]
    assert any(cells[at : at + 6] == told for at in range(len(cells)))
    assert any(cells[at : at + 5] == ["2,048", "7", "25.00%", "20.00%", "50.00%"] for at in range(len(cells)))
    assert "A draft vocabulary of 32 ids covers 98.70 % of them." in page


def test_its_data_is_json(page: str, run: Run) -> None:
    raw = re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert raw is not None
    data = json.loads(raw[1])
    summary = files.read_json(run.summary)
    assert sum(row["count"] for row in data["output_lengths"]) == summary["turns"]
    assert sum(row["count"] for row in data["prompt_lengths"]) == summary["turns"]
    assert sum(row["count"] for row in data["failures"]) == summary["failures"]
    assert {row["source"] for row in data["mix"]} == set(SOURCES)


def test_twenty_conversations_of_each_source(run: Run) -> None:
    found = conversations.sampled(run)
    assert {source: len(records) for source, records in found.items()} == dict.fromkeys(SOURCES, 20)
    assert found == conversations.sampled(run)
    completions = {row["prompt_id"] for chunk in run.chunks() for row in files.read_jsonl_zst(run.completions(chunk))}
    shown = [record["prompt_id"] for records in found.values() for record in records]
    assert len(set(shown)) == 100 and set(shown) <= completions
    texts = [message["text"] for records in found.values() for record in records for message in record["messages"]]
    assert max(map(len, texts)) < 7000 and any("characters are left out here" in text for text in texts)
    assert any(message["calls"] for message in found["hermes_func_calling"][0]["messages"])


def test_twenty_of_a_source_of_which_most_failed(tmp_path: Path) -> None:
    run = make(tmp_path, prompts=400, chunks=2)
    drawn = sorted(
        (row for chunk in run.chunks() for row in files.read_jsonl_zst(run.completions(chunk))),
        key=lambda row: str(row["prompt_id"])[32:],
    )
    lost = {row["prompt_id"] for row in drawn if row["source"] == "infinity_instruct"} - {
        row["prompt_id"] for row in [row for row in drawn if row["source"] == "infinity_instruct"][-20:]
    }
    for chunk in run.chunks():
        rows = list(files.read_jsonl_zst(run.completions(chunk)))
        gone = [
            {key: row[key] for key in ("prompt_id", "sample", "source")} for row in rows if row["prompt_id"] in lost
        ]
        failures = [*files.read_jsonl_zst(run.failures(chunk)), *(row | {"class": "poison"} for row in gone)]
        files.write_jsonl_zst(run.completions(chunk), [row for row in rows if row["prompt_id"] not in lost])
        files.write_jsonl_zst(run.failures(chunk), failures)
    assert len(lost) > 100 and len(conversations.sampled(run)["infinity_instruct"]) == 20


def test_an_opening_is_a_line(run: Run) -> None:
    openings = [record["opening"] for records in conversations.sampled(run).values() for record in records]
    assert max(map(len, openings)) <= 160 and not [one for one in openings if "\n" in one or "left out" in one]
    assert any(one.startswith("long 0123456789") and one.endswith("...") for one in openings)


def test_a_long_conversation_is_shortened() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    turns = [
        {"class": "complete", "marks": [], "usage": usage | {"completion_tokens": n}, "seconds": 1.0} for n in range(50)
    ]
    old: Any = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "recorded"}]
    made: Any = [
        m for n in range(50) for m in ({"role": "user", "content": "Q"}, {"role": "assistant", "content": f"{n}"})
    ]
    record = {"prompt_id": "x", "source": "s", "ended": "complete", "tools": None, "turns": turns}
    shown = conversations._page(record | {"messages": [*old, *made]}, 100_000)
    assert shown["left_out"] == 102 - conversations.MOST_MESSAGES and shown["tokens"] == sum(range(50))
    assert shown["messages"][1]["text"] == "recorded" and shown["messages"][1]["turn"] is None
    assert shown["messages"][-1]["text"] == "49" and shown["messages"][-1]["turn"]["tokens"] == 49


def test_tokens_a_second(lines: list[Any], run: Run) -> None:
    rows = curves.pace(lines)
    assert len({row["from"] for row in rows}) == curves.MOST_BINS
    seconds = 10_800 / curves.MOST_BINS
    made = sum(server["output_tokens"] for line in lines for server in line["servers"].values())
    assert sum(row["rate"] * seconds for row in rows) == pytest.approx(made, rel=0.02)
    away = [row for row in rows if row["server"] == "server 1" and BEGAN + 3700 < row["from"] / 1000 < BEGAN + 4100]
    assert away and all(row["rate"] == row["in_flight"] == row["seats"] == 0 for row in away)


def test_nobody_at_work_is_no_zero(lines: list[Any]) -> None:
    later = [line | {"at": line["at"] + 50_000} for line in lines]
    rows = curves.pace([*lines, *later])
    assert rows and not [row for row in rows if BEGAN + 11_200 < row["from"] / 1000 < BEGAN + 49_000]
    assert curves.pace([]) == curves.shares([]) == [] and curves.lives([]) == ([], [])


def test_a_short_run_has_a_curve_too(lines: list[Any]) -> None:
    rows = curves.pace([lines[0]])
    assert [(row["server"], row["to"] - row["from"]) for row in rows] == [("server 0", 10_000), ("server 1", 10_000)]
    assert curves.pace([lines[0] | {"seconds": 0.0}]) == []


def test_the_lives_of_servers(lines: list[Any]) -> None:
    spans, deaths = curves.lives(lines)
    told = [(span["server"], span["start"], (span["to"] - span["from"]) // 1000) for span in spans]
    assert told == [("server 0", 1, 10_800), ("server 1", 1, 3600), ("server 1", 2, 6600)]
    assert [(death["server"], death["at"] / 1000 - BEGAN) for death in deaths] == [("server 1", 3600)]


def test_shares_over_time(lines: list[Any]) -> None:
    rows = curves.shares(lines)
    at = {t: sum(row["share"] for row in rows if row["from"] == t) for t in {row["from"] for row in rows}}
    assert all(total == pytest.approx(1, abs=0.01) for total in at.values())
    cut = [row["share"] for row in rows if row["class"] == "cut_in_thinking"]
    assert cut[-1] > 1.5 * cut[0]


def test_stages(tmp_path: Path) -> None:
    path = tmp_path / "timings.jsonl"
    spans = [("chunks", 0, 10), ("chunks", 5, 20), ("chunks", 100, 110), ("reporting", 0, 1)]
    lines = [json.dumps({"stage": stage, "start": start, "end": end}) for stage, start, end in spans]
    path.write_text("\n".join(lines) + '\n{"stage": "ch')
    assert [(row["from"], row["to"]) for row in curves.stages(path)] == [(0, 20_000), (100_000, 110_000)]


def test_uploads_are_summed_up(run: Run, tmp_path: Path) -> None:
    receipt = tmp_path / "0000.json"
    objects = [{"path": f"completions/{n}", "bytes": 10} for n in range(5)] + [{"path": "lock.json", "bytes": 99}]
    files.write_json(receipt, {"objects": objects})
    rows = curves.upload(run, [receipt])
    sizes = [path.stat().st_size for path in run.folder.glob("completions/*.zst")]
    assert [row["bytes"] for row in rows if row["what"] == "finished"][-1] == sum(sizes)
    assert [row["bytes"] for row in rows if row["what"] == "stored"] == [50]
    assert curves.upload(run, []) == []


def test_provenance(run: Run) -> None:
    sidecars = [files.read_json(run.sidecar(chunk)) for chunk in run.chunks()]
    found = provenance(run, sidecars)
    assert [row["revision"] for row in found["datasets"]] == ["c" * 40] * len(SOURCES)
    assert found["datasets"][0]["dataset"] == "org/infinity_instruct"
    assert found["versions"]["sglang"] == "0.5.23" and found["versions"]["snakemake"]
    assert len(found["speed"]) == 1 and '"bfloat16"' in found["content"] and "org/openorca" in found["config"]


def test_a_shard_that_only_stood_in(tmp_path: Path) -> None:
    run = make(tmp_path, prompts=40, chunks=2)
    mix = files.read_json(run.manifest_json)
    stood_in = {"own": 0, "stood_in_for": {"openorca": 5}, "filled": 2, "dropped": {}, "available": 9, "not_drawn": 2}
    gone = {"kind": "gated", "reason": "ask \x1b for it"}
    mix["sources"][0] |= {"unavailable": gone, "quota": "all"}
    files.write_json(run.manifest_json, mix | {"others": [{"source": "spare", **stood_in}]})
    found = Tags(report.report(run, []).decode())
    assert "spare" in found.text and any("can't be read: ask <U+001B> for it" in text for text in found.text)


def test_several_samples_are_asked_of_each_prompt(tmp_path: Path) -> None:
    run = make(tmp_path, prompts=200, chunks=1)
    config = (run.folder / "run.yaml").read_text().replace("sampling:\n", "sampling:\n  n: 4\n")
    (run.folder / "run.yaml").write_text(config)
    counts = {source["source"]: source for source in files.read_json(run.manifest_json)["sources"]}
    mix = {row["source"]: row for row in report._mix(Run(run.folder), {}, Counter())}
    for name, row in mix.items():
        assert (row["asked"], row["taken"]) == (4 * counts[name]["quota"], 4 * counts[name]["taken"])
    assert "what was asked, 4 answers of each prompt." in report.report(Run(run.folder), []).decode()


def test_an_account_of_an_older_version(tmp_path: Path) -> None:
    run = make(tmp_path, prompts=40, chunks=2)
    summary = files.read_json(run.summary)
    del summary["windows"]
    files.write_json(run.summary, summary)
    with pytest.raises(
        PlainError, match=r"summary\.json does not hold what it should; delete it and run the same line"
    ):
        report.report(run, [])


def test_a_run_of_which_little_was_recorded(tmp_path: Path) -> None:
    run = make(tmp_path, prompts=40, chunks=2)
    for name in ("progress.jsonl", "timings.jsonl"):
        (run.folder / name).unlink()
    for chunk in run.chunks():
        sidecar = files.read_json(run.sidecar(chunk))
        files.write_json(run.sidecar(chunk), {key: value for key, value in sidecar.items() if key != "sources"})
    assert run.name in report.report(run, []).decode()


def test_vendored_code_is_what_its_readme_says() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), flags=re.M)
    assert len(rows) == 2
    for name, digest in rows:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
        assert "</script" not in (VENDOR / name).read_text(encoding="utf-8")

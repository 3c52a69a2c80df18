"""Records as a person reads them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.standin.made_run import SOURCES, make
from tests.standin.project import ROOT, Project
from tests.standin.server import tokens
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.reporting import show, training_rows
from workflow_scripts.reporting.opening import open_run
from workflow_scripts.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make(tmp_path_factory.mktemp("made"), nasty=True)


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run: Run, *args: str) -> str:
    monkeypatch.setattr("sys.argv", ["show", str(run.folder), *args])
    show.main()
    return capsys.readouterr().out


def test_a_class_of_a_source(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(capsys, monkeypatch, run, "--source", "infinity_instruct", "--class", "cut_in_thinking", "-n", "2")
    assert out.count("━━ prompt ") == 2 and out.count("source infinity_instruct, chunk ") == 2
    assert out.count("▌ assistant  cut_in_thinking; 4,096 tokens after ") == 2
    assert "  ┆ " in out and "▌ user\n" in out


def test_calls_and_tools(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(capsys, monkeypatch, run, "--class", "tool_call", "-n", "1")
    assert '→ get_weather {"city": "Oslo"}' in out and "tools: get_weather" in out and "no_thinking" in out


def test_failures(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(capsys, monkeypatch, run, "--class", "too_long", "-n", "1")
    assert "failed: too_long: it is too long: <U+001B>[1m9,000<U+001B>[0m tokens" in out


def test_nothing_in_it_steers_the_terminal(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shown(capsys, monkeypatch, run, "-n", "1000", "--color", "never", "--most", "1000000")
    assert out.count("━━ prompt ") == 300
    assert all(one.isprintable() or one in "\n\t\u200d" for one in out)


def test_one_prompt_in_colour(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first: Any = next(iter(files.read_jsonl_zst(run.completions("00002"))))
    out = shown(capsys, monkeypatch, run, "--prompt", first["prompt_id"][:12], "--color", "always")
    assert f"\x1b[1m━━ prompt {first['prompt_id']}\x1b[0m" in out and out.count("━━") == 1


def test_what_a_journal_holds(tmp_path: Path, run: Run) -> None:
    live = make(tmp_path, prompts=20, chunks=2)
    rows = list(files.read_jsonl_zst(live.completions("00001")))
    live.sidecar("00001").unlink()
    lines = [orjson.dumps({"completion": row}) for row in rows[:3]]
    files.write_bytes(live.journal("00001"), b'{"session": {}}\n' + b"\n".join(lines) + b"\n" + lines[0][:40])
    found = [record["prompt_id"] for chunk, record in show.records(live, show.Wanted()) if chunk == "00001"]
    assert found == [row["prompt_id"] for row in rows[:3]]


def test_none(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown(capsys, monkeypatch, run, "--source", "nobody")
    assert told == shown(capsys, monkeypatch, run, "--training", "--class", "cut_in_thoughts")
    sources = "hermes_func_calling, infinity_instruct, metamathqa, openorca, own_tickets"
    classes = "complete, cut_in_answer, cut_in_thinking, empty, repetition, too_long, tool_call"
    assert told == f"{run.name} has no such record. It has sources {sources}; classes {classes}.\n"


def test_none_of_a_run_in_which_all_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, prompts=40, chunks=1)
    failed = {"completions": {"rows": 0}, "classes": {}, "failure_classes": {"refused": 40}, "sources": {}}
    files.write_json(run.sidecar("00000"), files.read_json(run.sidecar("00000")) | failed)
    told = shown(capsys, monkeypatch, run, "--class", "complete")
    assert told.endswith(f"It has sources {', '.join(sorted(SOURCES))}; classes refused.\n")


@pytest.mark.parametrize("option", ["-n", "--most"])
def test_a_number_that_is_none(
    run: Run, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        shown(capsys, monkeypatch, run, option, "-3")
    assert "-3 is less than 1" in capsys.readouterr().err


def test_training_rows(run: Run) -> None:
    row = next(training_rows.read(run))
    prompt = row["loss_mask"].count(0)
    text = show.training_told(row, training_rows.decoder(run), show.Style(colour=False, most=10_000))
    ids = " ".join(map(str, row["input_ids"][:prompt])), " ".join(map(str, row["input_ids"][prompt:]))
    assert text.endswith(f"\n{ids[0]}[[{ids[1]}]]\n") and f"{len(row['input_ids']) - prompt} of " in text
    coloured = show.training_told(row, lambda ids: "one\ntwo", show.Style(colour=True, most=100))
    assert coloured.endswith("\x1b[2mtwo\x1b[0m\x1b[32mone\x1b[0m\n\x1b[32mtwo\x1b[0m\n")


def test_the_models_own_tokenizer_reads_the_ids(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.make_model(259)
    run = make(tmp_path / "results", prompts=10, chunks=1)
    config = (run.folder / "run.yaml").read_text().replace("org/Model-27B", str(tmp_path / "model"))
    (run.folder / "run.yaml").write_text(config)
    assert training_rows.decoder(Run(run.folder))(tokens("Zürich")) == "Zürich"


def test_a_model_that_is_gone(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["show", str(run.folder), "--training", "-n", "1"])
    show.main()
    told = capsys.readouterr()
    assert "[[" in told.out and told.err == "the model's tokenizer is not here: its ids are shown\n"


def test_a_terminal_without_unicode(run: Run) -> None:
    argv = [sys.executable, "-m", "workflow_scripts.reporting.show", str(run.folder), "-n", "1"]
    env = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith(b"\\u2501\\u2501 prompt "), done.stderr


def test_segments() -> None:
    assert list(training_rows.segments([1, 2, 3, 4], [0, 1, 1, 0])) == [(False, [1]), (True, [2, 3]), (False, [4])]


def test_the_run_that_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlainError, match="no run in results/ yet"):
        open_run(None)
    with pytest.raises(PlainError, match="nowhere does not exist"):
        open_run(Path("nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlainError, match="no run's folder"):
        open_run(Path("empty"))
    for name in ("one-1", "two-2"):
        files.write_bytes(tmp_path / "results" / name / "run.yaml", b"{}")
    (tmp_path / "results" / "two").symlink_to("two-2")
    for path in (None, Path("results/two"), Path("results/two-2"), Path("results/two-2/run.yaml")):
        assert open_run(path).folder == tmp_path / "results" / "two-2"
    with pytest.raises(PlainError, match="several runs; name one of them: one-1, two-2"):
        open_run(Path("results"))


def test_every_source_is_there(run: Run) -> None:
    assert {record["source"] for _, record in show.records(run, show.Wanted())} == set(SOURCES)

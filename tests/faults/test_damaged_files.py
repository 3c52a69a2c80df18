"""Files that a death tore, another program changed or a person moved: found, told in plain words, and mended."""

import os
import signal
from pathlib import Path

import pytest

from tests.standin.project import Project
from tests.standin.waiting import until
from workflow_scripts import files
from workflow_scripts.files import Journal


def half_done(project: Project) -> None:
    """Kill the run when one chunk is finished, or nearly, and another has answers in its journal."""
    run = project.start(STANDIN_FAULTS='{"hold_after": 10}')
    until(lambda: project.journaled() == 10)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    project.no_process_left()


@pytest.mark.parametrize("tail", [b'{"completion":{"prompt_id":"0', b"\0\0\0\0"], ids=["half", "zeros"])
def test_a_torn_last_line_is_cut_off(prepared: Project, tail: bytes) -> None:
    half_done(prepared)
    safe, asked = prepared.journaled(), len(prepared.requests())
    for journal in prepared.made.folder.glob("journal/*"):
        with journal.open("ab") as file:
            file.write(tail)
    prepared.finish()
    assert len(prepared.requests()) - asked == 24 - safe


def test_a_torn_answer_is_asked_again(prepared: Project) -> None:
    half_done(prepared)
    safe, asked = prepared.journaled(), len(prepared.requests())
    torn = 0
    unfinished = [chunk for chunk in prepared.made.chunks() if not prepared.made.sidecar(chunk).exists()]
    for journal in filter(Path.exists, map(prepared.made.journal, unfinished)):
        last = journal.read_bytes().splitlines(keepends=True)[-1]
        os.truncate(journal, journal.stat().st_size - len(last) // 2)
        torn += last.startswith(b'{"completion"')
    assert torn >= 1
    prepared.finish()
    assert len(prepared.requests()) - asked == 24 - safe + torn


def test_a_journal_of_other_prompts_is_refused(prepared: Project) -> None:
    half_done(prepared)
    run = prepared.made
    first, second = run.journal("00000"), run.journal("00001")
    kept = first.read_bytes()
    for path in run.chunk_files("00000"):  # it may be finished already
        path.unlink(missing_ok=True)
    first.write_bytes(second.read_bytes())
    result = prepared.run("--keep-going")
    assert result.code != 0 and "Traceback" not in result.output, result.output
    says = result.lines(f"error: {first} was written for other prompts")
    assert says and says == result.lines("error: ")
    assert run.sidecar("00001").exists() and run.sidecar("00002").exists() and not run.sidecar("00000").exists()

    first.write_bytes(kept)
    prepared.finish()


def test_a_damaged_line_inside_a_journal_is_told(prepared: Project) -> None:
    half_done(prepared)
    journal = prepared.made.journal("00000")
    for path in prepared.made.chunk_files("00000"):
        path.unlink(missing_ok=True)
    content = journal.read_bytes()
    journal.write_bytes(content.replace(b'{"completion"', b'{"comple\xffion"', 1))
    result = prepared.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert result.lines(f"error: {journal}: the line at byte "), result.output
    journal.unlink()  # as told: "Move the file away"
    prepared.finish()


def test_a_journal_that_another_process_writes_is_left_alone(prepared: Project) -> None:
    """As by a job of an earlier start that is still there, or by hand."""
    half_done(prepared)
    run = prepared.made
    for path in run.chunk_files("00000"):
        path.unlink(missing_ok=True)
    before = run.journal("00000").read_bytes()
    with Journal(run.journal("00000")):
        result = prepared.run()
        assert result.code != 0 and "Traceback" not in result.output, result.output
        says = result.lines("error: chunk 00000: another process writes its journal (")
        assert says and says == result.lines("error: ")
        assert run.journal("00000").read_bytes() == before
        assert run.sidecar("00001").exists() and run.sidecar("00002").exists()
    prepared.finish()


def test_an_edited_sidecar_is_told_and_made_again(finished: Project) -> None:
    sidecar = finished.made.sidecar("00001")
    value = files.read_json(sidecar)
    value["completions"]["rows"] -= 1
    files.write_json(sidecar, value)
    result = finished.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    says = f"error: {sidecar}: its 7 answers are not those that chunk 00001 owes by the manifest (8)"
    assert len(result.lines(says)) == 1, result.output
    for path in finished.made.chunk_files("00001"):  # as told: "delete the chunk's files to make it again"
        path.unlink()
    finished.finish()
    assert len(finished.requests()) == 24


def test_a_changed_completions_file_is_told_and_made_again(finished: Project) -> None:
    path = finished.made.completions("00001")
    rows = list(files.read_jsonl_zst(path))
    rows[0]["messages"][-1]["content"] = "Something else."
    files.write_jsonl_zst(path, rows)
    finished.made.summary.unlink()
    result = finished.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert len(result.lines(f"error: {path} is not the file that was finished; delete it")) == 1, result.output
    path.unlink()
    finished.finish()
    assert len(finished.requests()) == 24


def test_prompts_that_changed_under_a_finished_chunk_are_told_and_made_again(finished: Project) -> None:
    run = finished.made
    path = run.prompts("00001")
    rows = list(files.read_jsonl_zst(path))
    rows[0]["messages"][-1]["content"] = "Something else?"
    files.write_jsonl_zst(path, rows)
    run.summary.unlink()
    result = finished.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    says = f"error: {path} is not the file that {run.completions('00001')} answers; delete the prompts file"
    assert len(result.lines(says)) == 1, result.output
    path.unlink()
    result = finished.run()
    assert result.code == 0, result.output


def test_a_cut_completions_file_does_not_pass_for_a_finished_one(finished: Project) -> None:
    """As a disk that lost its last writes leaves it, the newer sidecar there."""
    path: Path = finished.made.completions("00002")
    times = path.stat()
    os.truncate(path, path.stat().st_size // 2)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for index in finished.made.folder.glob("training/*/training.json"):
        index.unlink()
    result = finished.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    says = "is not the file that was finished; delete it and run the same line again"
    assert f"{path.relative_to(finished.folder)} {says}" in result.output
    path.unlink()
    finished.finish()

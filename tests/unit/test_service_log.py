import os
from pathlib import Path

import pytest

from workflow_scripts.serving import service_log
from workflow_scripts.serving.service_log import open_for_start, telling_lines


def write(path: Path, number: int, text: str) -> None:
    with open_for_start(path, number, ["python", "-m", "server", "--name", "two words"]) as fd:
        os.write(fd, text.encode(errors="surrogateescape"))


def test_each_start_has_a_header_and_appends(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    write(log, 1, "one\n")
    write(log, 2, "two\n")
    lines = log.read_text().splitlines()
    assert lines[0].startswith("=== draftmill: start 1, ") and lines[0].endswith(
        ": python -m server --name 'two words'"
    )
    assert lines[1] == "one" and lines[2].startswith("=== draftmill: start 2, ") and lines[3] == "two"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_long_log_is_moved_away_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_log, "ROTATE_BYTES", 200)
    log = tmp_path / "service.log"
    write(log, 1, "x" * 300)
    write(log, 2, "y" * 10)
    assert "x" * 300 in (tmp_path / "service.log.1").read_text()
    assert "x" not in log.read_text().partition("\n")[2]
    assert log.stat().st_mode & 0o777 == 0o600


def test_exceptions_and_complaints_are_told_and_frames_are_not(tmp_path: Path) -> None:
    write(tmp_path / "log", 1, "ValueError: of the last start\n")
    write(
        tmp_path / "log",
        2,
        "loading weights\n"
        "Traceback (most recent call last):\n"
        '  File "error.py", line 1, in failed\n'
        "    raise RuntimeError('fatal error')\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory\n"
        "[TP0] Address already in use\n"
        "bye\n",
    )
    assert telling_lines(tmp_path / "log") == [
        "torch.cuda.OutOfMemoryError: CUDA out of memory",
        "[TP0] Address already in use",
    ]


def test_without_a_complaint_the_end_is_told(tmp_path: Path) -> None:
    write(tmp_path / "log", 1, "".join(f"line {number}\n\n" for number in range(40)))
    assert telling_lines(tmp_path / "log") == [f"line {number}" for number in range(25, 40)]


def test_a_complaint_repeated_is_told_once(tmp_path: Path) -> None:
    write(tmp_path / "log", 1, "Error: a\nError: b\n" * 30)
    assert telling_lines(tmp_path / "log") == ["Error: a", "Error: b"]


def test_lines_are_fit_for_a_terminal(tmp_path: Path) -> None:
    write(tmp_path / "log", 1, "progress\rError: \x1b[31;1mred\x1b[0m\x07\x9b \u202etext\udcff" + "x" * 1000 + "\n")
    (line,) = telling_lines(tmp_path / "log")
    assert line.startswith("Error: red text\ufffdx") and len(line) == 300 and line.isprintable()


@pytest.mark.parametrize(
    "line, shown",
    [
        ("error: ServerArgs(api_key='abc', port=1)", "error: ServerArgs(api_key=***, port=1)"),
        ('error: {"password": "a b"}', 'error: {"password": ***}'),
        ("error: hf_token=hf_abc max_total_tokens=5", "error: hf_token=*** max_total_tokens=5"),
        ("KeyError: 'model.embed'", "KeyError: 'model.embed'"),
    ],
)
def test_secrets_are_masked(tmp_path: Path, line: str, shown: str) -> None:
    write(tmp_path / "log", 1, line)
    assert telling_lines(tmp_path / "log") == [shown]


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_log, "TAIL_BYTES", 100)
    write(tmp_path / "log", 1, "Error: early\n" + "x\n" * 100 + "Error: late\n")
    assert telling_lines(tmp_path / "log") == ["Error: late"]


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    assert telling_lines(tmp_path / "log") == []

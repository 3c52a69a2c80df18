"""Flags are checked against what an installed SGLang lists, and renamed ones name their replacement."""

import json
from pathlib import Path

import pytest

from workflow_scripts.errors import PlainError
from workflow_scripts.serving import known_flags
from workflow_scripts.serving.environment import Environment
from workflow_scripts.serving.known_flags import Known

RECORDED = Path(__file__).parents[1] / "data" / "sglang_flags.json"
KNOWN = Known.from_json(json.loads(RECORDED.read_text()))


def test_what_sglang_knows_is_right() -> None:
    given = {"attention-backend": "flashinfer", "disable-radix-cache": True, "tp-size": 2, "dtype": None, "port": 3}
    assert KNOWN.version == "0.5.23"
    assert known_flags.mistakes(given, KNOWN, []) == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("mamba-scheduler-strategy", "no_buffer", "has no such flag; it is called mamba-radix-cache-strategy there"),
        ("max-runing-requests", 8, "has no such flag; did you mean max-running-requests"),
        ("cuda-graph-max-bs", 256, "has no such flag; it is called cuda-graph-max-bs-decode there"),
        ("qqq", 1, "has no such flag"),
        ("fp4-gemm-backend", "cutlass", "knows no 'cutlass'; it is called flashinfer_cutlass there; allowed: auto, fl"),
        (
            "mamba-radix-cache-strategy",
            "none",
            "knows no 'none'; allowed: auto, extra_buffer, extra_buffer_lazy, no_buf",
        ),
    ],
)
def test_what_it_does_not_know_is_told_with_what_is_meant(name: str, value: object, told: str) -> None:
    (line,) = known_flags.mistakes({name: value, "port": 1}, KNOWN, [name])
    assert line.startswith(f"servers.args.{name}: SGLang 0.5.23 {told}")


def test_all_mistakes_are_told_at_once_and_whose_they_are() -> None:
    lines = known_flags.mistakes({"qqq": 1, "zzz": 2, "attention-backend": "x"}, KNOWN, ["qqq"])
    assert [line.split(":")[0] for line in lines] == [
        "servers.args.qqq",
        "--zzz, which Draftmill sets unless servers.args does",
        "--attention-backend, which Draftmill sets unless servers.args does",
    ]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment whose python lists the recorded flags, and counts how often it is asked."""
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho a warning\ncat {RECORDED}\n")
    python.chmod(0o755)
    return Environment("sglang-cpu", tmp_path, python, "hash", 0)


def test_it_is_asked_once(env: Environment, tmp_path: Path) -> None:
    for _ in range(2):
        assert known_flags.listing(env, "sglang-cpu") == KNOWN
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_python_that_tells_nothing_is_told(env: Environment) -> None:
    env.python.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(PlainError, match="its SGLang doesn't tell its flags"):
        known_flags.listing(env, "sglang-cpu")
    env.python.write_text("#!/bin/sh\necho \"No module named 'sglang'\" >&2; exit 1\n")
    with pytest.raises(PlainError, match="its SGLang can't be imported:\n  No module named 'sglang'"):
        known_flags.listing(env, "sglang-cpu")
    env.python.unlink()
    with pytest.raises(PlainError, match="can't be run"):
        known_flags.listing(env, "sglang-cpu")

"""The target `doctor`, and what a start tells by itself."""

from pathlib import Path

import pytest

from tests.standin import models
from tests.standin.hub import running_hub
from tests.standin.machines import install_tools
from tests.standin.project import Project
from workflow_scripts import files
from workflow_scripts.serving import environment


def report(project: Project) -> list[dict[str, str]]:
    """What the last doctor found, errors and warnings."""
    (path,) = project.results.glob("small-*/doctor.json")
    found: list[dict[str, str]] = files.read_json(path)["findings"]
    return [finding for finding in found if finding["severity"] != "note"]


def test_a_healthy_world_is_said_in_one_line_and_nothing_is_begun(fresh: Project) -> None:
    (fresh.folder / "model" / "chat_template.jinja").write_text("{{ messages }}")
    result = fresh.run("doctor")
    assert result.code == 0, result.output
    (line,) = result.lines("doctor: nothing is in the way of small-")
    assert line.endswith(" s)")
    assert report(fresh) == []
    made = {path.name for path in fresh.results.glob("small-*/*")}
    assert made == {"doctor.json", "doctor.txt", "doctor.yaml", "logs"}
    assert fresh.requests() == [] and fresh.run("doctor").code == 0  # it always looks again


def test_all_that_is_wrong_is_told_at_once_and_the_exit_code_says_so(fresh: Project) -> None:
    (fresh.folder / "model" / "model.safetensors").unlink()
    fresh.config["servers"]["args"] |= {"mamba-scheduler-strategy": "no_buffer", "port": 1}
    fresh.config["sampling"]["thinking"] = True
    with running_hub() as hub:
        fresh.config["sources"]["lost"] = {"dataset": "nobody/nothing", "take": 5}
        result = fresh.run("doctor", HF_ENDPOINT=hub.url)
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert [(finding["check"], finding["severity"]) for finding in report(fresh)] == [
        ("model", "error"),
        ("flags", "error"),
        ("flags", "error"),
        ("sources", "error"),
        ("template", "warning"),
    ]
    assert result.lines(
        "error: flags: servers.args.mamba-scheduler-strategy: SGLang 0.5.23 has no such flag; it is called"
    )
    assert result.lines("error: sources: sources.lost: there is no dataset nobody/nothing")
    text = next(fresh.results.glob("small-*/doctor.txt")).read_text().splitlines()
    assert len(text) == 5 and text[-1].startswith("warning: template: ")


def test_a_start_that_cannot_end_well_is_refused_before_the_first_job(fresh: Project, tmp_path: Path) -> None:
    """On four A100 with a driver for CUDA 12, with one more fault of the sources."""
    install_tools("4x_a100", tmp_path / "bin")
    fresh.config["servers"] = {"count": 9}
    with running_hub() as hub:
        fresh.config["sources"]["lost"] = {"dataset": "nobody/nothing", "take": 5}
        result = fresh.run(PATH=f"{tmp_path}/bin:/usr/bin:/bin", HF_ENDPOINT=hub.url)
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert result.lines("error: this run can't be made as things are:")
    assert result.lines("error: gpus: driver 550.163.01 is too old")
    assert result.lines("error: gpus: servers.count 9 of 1 GPU(s) each takes 9, and 4 can be used here")
    assert result.lines("error: sources: sources.lost: there is no dataset nobody/nothing")
    assert not any(path.is_file() for path in fresh.results.glob("small-*/sources/*"))


def test_a_part_that_needs_no_server_is_made_without_a_gpu(fresh: Project) -> None:
    fresh.config["servers"] = {"count": 8}
    assert fresh.run("prompts").code == 0


PYTHON = """#!/bin/sh
case "$*" in
    *importlib.metadata*) echo 0.5.23; exit ;;
    *--check-imports*) echo "sglang 0.5.23 imports"; exit ;;
esac
exec {standin} "$@"
"""


@pytest.fixture
def on_gpus(fresh: Project, tmp_path: Path) -> Project:
    """A project for eight RTX PRO 6000, with a Python of the user's own, which starts the stand-in."""
    install_tools("8x_rtx_pro_6000", tmp_path / "bin")
    fresh.env["PATH"] = f"{tmp_path}/bin:/usr/bin:/bin"
    standin = fresh.home / "envs" / environment.named("sglang-cpu").folder.name / "bin" / "python"
    own = fresh.folder / "own" / "bin" / "python"
    files.write_bytes(own, PYTHON.format(standin=standin).encode(), mode=0o755)
    fresh.config["servers"] |= {"engine": "sglang", "python": str(own), "count": 2}
    config = models.QWEN36_27B | {"vocab_size": 259}
    files.write_json(fresh.folder / "model" / "config.json", config)
    (fresh.folder / "model" / "chat_template.jinja").write_text(models.QWEN35_TEMPLATE)
    return fresh


def test_servers_start_on_their_gpus_with_the_flags_of_card_and_model(on_gpus: Project) -> None:
    result = on_gpus.finish()
    for number in (0, 1):
        (command,) = result.lines(f"server {number}: command: CUDA_VISIBLE_DEVICES={number} ")
        for words in (
            "--attention-backend flashinfer",
            "--disable-radix-cache",
            "--reasoning-parser qwen3 --tool-call-parser qwen3_coder",
            "--max-running-requests 4",
        ):
            assert words in command, command
        key = (on_gpus.made.server(number) / "key").read_text()
        assert key not in result.output
        assert result.lines(f"server {number}: --attention-backend flashinfer: FlashAttention 3")
        (granted,) = result.lines(f"server {number} granted: ")
        assert granted.startswith(f"server {number} granted: 4 seats (asked: 4), ")


def test_what_the_gpu_adds_is_no_other_run(on_gpus: Project) -> None:
    on_gpus.run("prompts")
    name = on_gpus.made.name
    on_gpus.config["servers"] = {"engine": "sglang-cpu", "args": {}}
    on_gpus.run("prompts")
    assert on_gpus.made.name == name


def test_a_flag_that_sglang_does_not_know_starts_no_server(on_gpus: Project) -> None:
    on_gpus.config["servers"]["args"]["max-runing-requests"] = 8
    result = on_gpus.run()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert "servers.args.max-runing-requests: SGLang 0.5.23 has no such flag; did you mean max-running-requests" in (
        result.output
    )
    assert on_gpus.server_starts() == 0

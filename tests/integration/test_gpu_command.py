"""What the preset of 193,010 prompts starts on eight recorded RTX PRO 6000, read by the installed SGLang's parser."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.standin import models
from tests.standin.machines import machine
from workflow_scripts import config
from workflow_scripts.serving import given, known_flags, launch
from workflow_scripts.serving.environment import Environment

PRESET = Path(__file__).parents[2] / "config" / "presets" / "expansion_v1.yaml"

PARSE = """
import argparse, json, runpy, sys
runpy.run_path(sys.argv[1])
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
print(json.dumps(vars(parser.parse_args(sys.argv[2:])), default=str))
"""


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The target's folder: its config and template, and a hole of its size for the weights."""
    folder = tmp_path / "Qwen3.6-27B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(models.QWEN36_27B))
    (folder / "chat_template.jinja").write_text(models.QWEN35_TEMPLATE)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(55 * models.GB)
    return folder


def parsed(env: Environment, words: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [env.python, "-P", "-c", PARSE, launch.LAUNCHER, *words],
        env={**os.environ, "DRAFTMILL_ENGINE": "sglang-cpu"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_sglang_takes_the_command_of_each_of_the_eight_servers(env: Environment, weights: Path) -> None:
    preset = config.parse(config.load_yaml(PRESET), str(PRESET))
    eight = machine("8x_rtx_pro_6000")
    known = known_flags.listing(env, "sglang-cpu")
    starts = [given.flags_of(preset, number, weights, 30000 + number, eight) for number in range(8)]
    assert [start.gpus for start in starts] == [[str(number)] for number in range(8)]
    for start in starts:
        assert known_flags.mistakes(start.flags, known, preset.servers.args) == []
    taken = parsed(env, launch.words(starts[7].flags))
    assert taken["attention_backend"] == "flashinfer"
    assert taken["disable_radix_cache"] is True
    assert (taken["reasoning_parser"], taken["tool_call_parser"]) == ("qwen3", "qwen3_coder")
    assert (taken["context_length"], taken["port"], taken["host"]) == (8192, 30007, "127.0.0.1")
    assert (taken["model_path"], taken["served_model_name"]) == (str(weights), "Qwen/Qwen3.6-27B")
    assert taken["api_key"] is None
    command = launch.shown(launch.command(env.python, starts[7].flags), starts[7].gpus)
    assert command.startswith(f"CUDA_VISIBLE_DEVICES=7 {env.python} -P ")

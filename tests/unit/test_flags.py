"""Which flags make another run, and which only another speed."""

import subprocess
import sys
from pathlib import Path

import pytest

from workflow_scripts.serving import flags


@pytest.mark.parametrize(
    "name",
    [
        "context-length", "dtype", "quantization", "kv-cache-dtype", "reasoning-parser", "tool-call-parser",
        "chat-template", "lora-paths", "json-model-override-args", "sampling-defaults", "random-seed",
        "enable-deterministic-inference", "allow-auto-truncate", "load-format", "speculative-accept-threshold-single",
        "trust-remote-code", "a-flag-of-next-year",
    ],
)  # fmt: skip
def test_what_decides_the_answers_is_content(name: str) -> None:
    assert flags.content_flags({name: "x"}) == {name: "x"}
    assert flags.speed_flags({name: "x"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "mem-fraction-static", "chunked-prefill-size", "max-running-requests", "schedule-policy", "tp-size",
        "data-parallel-size", "attention-backend", "sampling-backend", "disable-radix-cache", "log-level", "page-size",
        "disable-cuda-graph", "mamba-radix-cache-strategy", "speculative-algorithm", "watchdog-timeout",
    ],
)  # fmt: skip
def test_what_decides_only_the_speed_is_not(name: str) -> None:
    assert flags.content_flags({name: "x"}) == {}
    assert flags.speed_flags({name: "x"}) == {name: "x"}


def test_a_flag_that_is_left_out_counts_as_absent_and_order_does_not_count() -> None:
    args = {"quantization": None, "trust-remote-code": False, "dtype": "auto", "context-length": 0}
    assert list(flags.content_flags(args).items()) == [("context-length", 0), ("dtype", "auto")]


def test_the_module_imports_the_standard_library_only() -> None:
    code = "import sys; import workflow_scripts.serving.flags; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert not {"pydantic", "orjson", "aiohttp", "huggingface_hub"} & set(loaded.stdout.split())
    assert "workflow_scripts.serving.flags" in loaded.stdout.split()

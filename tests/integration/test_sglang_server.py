"""The real SGLang on the CPU, through our launcher.

To start a server for a test:

1. `env = environment.ensure("sglang-cpu")`: built once per machine (two minutes, 2.5 GB), a look-up afterwards;
2. a model's folder: `model.ensure("embedded:SmolLM2-135M-Instruct", None, env.python)` (real, 135M, no thinking, 12 s
   once), or the output of tiny_qwen3.py (1.4M, thinks, calls a tool, answers known; 30 s);
3. a 0600 file with a key, and a free port;
4. `launch.command(env.python, launch.flags("sglang-cpu", args, folder, name, port))` with
   `launch.environ("sglang-cpu", key_file, [])`, its output in a file;
5. wait for 200 from /health (20 to 40 s); SIGTERM ends it, its children with it, in 4 to 8 s.

`sglang.py` does 3 to 5. One server takes 1.6 GB (tiny) to 2.5 GB (SmolLM2) of memory.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sglang import Server, sglang
from workflow_scripts.serving import flags, gpu_flags, known_flags, launch, model
from workflow_scripts.serving.environment import Environment

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def start_server(env: Environment, tmp_path: Path) -> Iterator[Callable[[Path, dict[str, Any]], Server]]:
    with ExitStack() as stack:
        yield lambda folder, args: stack.enter_context(sglang(env, folder, args, tmp_path))


def argv_of_all() -> str:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_text(errors="replace"))
            except OSError:
                pass
    return "\n".join(found)


def test_the_embedded_model_answers_behind_a_key(
    env: Environment, start_server: Callable[[Path, dict[str, Any]], Server]
) -> None:
    folder = model.ensure("embedded:SmolLM2-135M-Instruct", None, env.python)
    server = start_server(folder, {"max-running-requests": 8, "context-length": 2048})

    assert server.get("/v1/models", None)[0] == 401
    assert server.get("/server_info", "sk-wrong")[0] == 401
    assert server.key not in argv_of_all()
    log = server.log.read_text(errors="replace")
    assert server.key not in log
    assert "'api_key': '[key]'" in log

    granted = launch.granted(server.url, server.key)
    assert (granted.seats, granted.token_capacity, granted.context_length) == (8, 32768, 2048)
    assert 0 < granted.max_input_tokens < 2048
    assert (granted.version, granted.model_path, granted.served_name) == ("0.5.23", str(folder), "m")
    assert granted.content["context_length"] == 2048
    assert granted.speed["attention_backend"] == "torch_native"
    assert server.key not in repr(granted)

    choice = server.chat("What is the capital of France?")
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert choice["finish_reason"] == "stop"
    eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert choice["response_token_ids"][-1] == eos
    assert choice["prompt_token_ids"][0] == json.loads((folder / "config.json").read_text())["bos_token_id"]


def test_the_tiny_qwen3_thinks(tiny_qwen3: Path, start_server: Callable[[Path, dict[str, Any]], Server]) -> None:
    server = start_server(tiny_qwen3, {"reasoning-parser": "qwen3"})
    thought = server.chat("what is 12 times 7")
    assert thought["message"]["reasoning_content"].strip() == "The request looks like math."
    assert thought["message"]["content"].strip() == "math"
    direct = server.chat("tell me a joke", chat_template_kwargs={"enable_thinking": False})
    assert not direct["message"]["reasoning_content"]
    assert direct["message"]["content"].strip() == "chat"


def test_every_flag_that_we_name_is_one_of_sglangs(env: Environment) -> None:
    known = known_flags.listing(env, "sglang-cpu")
    ours = flags.SPEED_FLAGS | launch.MANAGED.keys() | launch.PARALLEL | launch.DEFAULTS["sglang-cpu"].keys()
    settings = {name.replace("_", "-") for name in (*launch.CONTENT_SETTINGS, *launch.SPEED_SETTINGS)}
    renamed = {*known_flags.RENAMED.values(), *(name for name, _ in known_flags.RENAMED_VALUES)}
    assert (ours | settings | renamed) - known.flags.keys() == set()
    assert not known_flags.RENAMED.keys() & known.flags.keys()


def test_the_table_for_gpus_names_flags_and_values_of_sglangs(env: Environment) -> None:
    known = known_flags.listing(env, "sglang-cpu")
    for line in gpu_flags.table():
        for value in [line.value, *line.refused]:
            assert known_flags.mistakes({line.flag: value}, known, []) == []


def test_the_recorded_list_of_flags_is_sglangs(env: Environment) -> None:
    recorded = known_flags.Known.from_json(json.loads((DATA / "sglang_flags.json").read_text()))
    assert known_flags.listing(env, "sglang-cpu") == recorded

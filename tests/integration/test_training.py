"""The trainers' own code on a real export: speculators, SpecForge and `datasets`, on the CPU.

The tiny Qwen3 answers through a real SGLang, which is asked for the log-probabilities of what it said, too.
"""

import math
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from tests.integration import trainers
from tests.integration.real_project import SECONDS, completions, real
from tests.integration.sglang import Server, sglang
from tests.integration.test_conversations import ASKED, talk, weather
from tests.integration.tiny_qwen3 import QUESTIONS
from tests.standin.project import Project
from workflow_scripts import files
from workflow_scripts.completions.decoding import says
from workflow_scripts.prompts.rendering import render
from workflow_scripts.serving.environment import Environment
from workflow_scripts.training.export import TORCH_FILES

DRAFT = 64  # ids of the draft vocabulary
PARSERS = {"reasoning-parser": "qwen3", "tool-call-parser": "qwen25"}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def server(env: Environment, tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = {"max-running-requests": 8, "context-length": 1024, **PARSERS}
    with sglang(env, tiny_qwen3, args, tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(scope="module")
def made(server: Server, tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A run of questions, conversations and calls of a tool, exported in every format."""
    project = real(tmp_path_factory.mktemp("training"), str(tiny_qwen3), "training")
    sources = {
        "questions": [{"messages": talk(text)} for texts in QUESTIONS.values() for text in texts],
        "talks": [{"messages": talk(*ASKED)}, {"messages": talk(*reversed(ASKED))}],
        "tools": [weather("rome"), weather("oslo"), weather("rome", "oslo")],
    }
    project.config["sources"] = {}
    for name, rows in sources.items():
        project.write_rows(name, rows)
        project.config["sources"][name] = {"path": f"data/{name}.jsonl", "shape": "messages"}
    project.config["prompts"] = {"turns": "all", "eval": 0.2}
    project.config["sampling"] = {"temperature": 0.0, "max_tokens": 100, "thinking": True}
    project.config["servers"] = {"engine": "sglang-cpu", "urls": [server.url], "leases": 2}
    formats = ["parquet", "jsonl", "conversations"]
    project.config["training"] = {"min_supervised_tokens": 2, "formats": formats, "draft_vocabulary": DRAFT}
    project.env = {"DRAFTMILL_SERVER_KEY": server.key}
    try:
        result = project.start().wait(SECONDS)
        assert result.code == 0, result.output
        project.audit()
        yield project
    finally:
        project.end_processes()


@pytest.fixture(scope="module")
def export(made: Project, env: Environment) -> Path:
    """The folder of the shards, with the files that torch writes."""
    (index,) = made.made.folder.glob("training/*/training.json")
    subprocess.run([env.python, "-P", TORCH_FILES, index.parent, str(DRAFT)], check=True, timeout=300)
    return index.parent


@pytest.fixture(scope="module")
def rows(export: Path) -> list[Row]:
    found: list[Row] = pq.read_table(export / "train-00000.parquet").to_pylist()
    return found


@pytest.fixture(scope="module")
def trained(env: Environment, export: Path, tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the trainers report of it."""
    python = trainers.ensure(env)
    return trainers.run(python, export, tiny_qwen3, str(DRAFT), folder=tmp_path_factory.mktemp("trainers"))


def pairs(rows: list[Row]) -> list[tuple[list[int], list[int]]]:
    return [(row["input_ids"], row["loss_mask"]) for row in rows]


def test_every_row_says_what_is_stored(made: Project, rows: list[Row], export: Path, tiny_qwen3: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_qwen3)
    stored = {row["prompt_id"]: row for row in completions(made.made)}
    whole = rows + pq.read_table(export / "eval-00000.parquet").to_pylist()
    assert Counter(row["prompt_id"] for row in whole) == {key: len(row["turns"]) for key, row in stored.items()}
    for row in whole:
        completion = stored[row["prompt_id"]]
        places = [at for at, message in enumerate(completion["messages"]) if message["role"] == "assistant"]
        at, first = places[row["turn"]], row["loss_mask"].index(1)
        asked = render(tokenizer, completion["messages"][:at], completion["tools"], {"enable_thinking": True})
        assert tokenizer.decode(row["input_ids"][:first]) == asked
        said = tokenizer.decode(row["input_ids"][first:])
        assert says(said, completion["messages"][at]) and said.endswith("<|im_end|>")


def test_the_trainers_load_the_rows_that_were_exported(trained: Any, rows: list[Row]) -> None:
    assert len(rows) >= 12
    assert trained["parquet"] == rows
    assert sorted(pairs(trained["arrow"]["rows"])) == sorted(pairs(rows))  # it shuffles them
    assert pairs(trained["specforge"]["payloads"]) == pairs(rows)
    batched = [
        ([token for token, real in zip(ids, there, strict=True) if real], mask[: sum(there)])
        for batch in trained["specforge"]["batches"]
        for ids, there, mask in zip(batch["input_ids"], batch["attention_mask"], batch["loss_mask"], strict=True)
    ]
    assert batched == pairs(rows)


def test_specforge_renders_the_conversations_itself(trained: Any, rows: list[Row], tiny_qwen3: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_qwen3)
    texts = trained["specforge"]["texts"]
    assert len(texts) == len({row["prompt_id"] for row in rows})
    answers = {"code", "math", "chat", "done", "weather"}
    for payload in texts:
        supervised = [token for token, mask in zip(payload["input_ids"], payload["loss_mask"], strict=True) if mask]
        assert any(answer in tokenizer.decode(supervised) for answer in answers)


def test_both_trainers_take_the_draft_vocabulary(trained: Any, rows: list[Row], export: Path) -> None:
    supervised = Counter(
        str(token) for row in rows for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask
    )
    mappings = trained["mappings"]
    assert trained["arrow"]["frequencies"] == mappings["frequencies"] == supervised
    assert mappings["speculators"] == mappings["own"] == mappings["specforge"]
    told = files.read_json(export / "training.json")["draft_vocabulary"]
    assert told["coverage"][str(DRAFT)] == 1.0 and told["different_tokens"] == len(supervised) <= DRAFT


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_tiny_drafter_learns(trained: Any, kind: str) -> None:
    losses = trained["losses"][kind]
    assert len(losses) == 20 and all(math.isfinite(loss) for loss in losses)
    assert max(losses[-5:]) < 0.6 * losses[0]


def test_the_loss_on_the_mask_is_the_servers_own_log_probability(trained: Any, rows: list[Row], server: Server) -> None:
    """Ids, their order and the mask, end to end: another mask, or other ids, would give another loss."""
    for row, target in zip(rows[:8], trained["logprobs"], strict=False):
        ids, mask = row["input_ids"], row["loss_mask"]
        first = mask.index(1)
        body = {"input_ids": ids[:first], "return_logprob": True, "rid": f"row-{row['prompt_id']}-{row['turn']}"}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": sum(mask)}
        status, reply = server.get("/generate", server.key, body)
        assert status == 200
        said = reply["meta_info"]["output_token_logprobs"]
        assert [token for _, token, *_ in said] == ids[first:]
        loss = -sum(value for value, on in zip(target, mask[1:], strict=True) if on) / sum(mask)
        own = -sum(value for value, *_ in said) / len(said)
        assert loss == pytest.approx(own, rel=0.1, abs=0.002)
        shifted = -sum(value for value, on in zip(target, mask[2:], strict=False) if on) / (sum(mask) - 1)
        assert shifted > 5 * loss

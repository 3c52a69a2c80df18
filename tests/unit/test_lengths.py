"""Tokens of prompts: as transformers counts them through the chat template, kept, and what is dropped by them."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.standin.tiny_tokenizer import make_tokenizer
from workflow_scripts import config, files
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import filters
from workflow_scripts.prompts import lengths as lengths_module
from workflow_scripts.prompts import tokenizer as tokenizers
from workflow_scripts.prompts.lengths import Counter, Counts, Lengths, open_lengths
from workflow_scripts.prompts.locking import lock_inputs
from workflow_scripts.run import Run
from workflow_scripts.sources.prompt_ids import identify

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]
PROMPTS: list[tuple[list[Any], Any]] = [
    ([{"role": "user", "content": "What is the weather like in Paris today?"}], None),
    ([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Grüße, 世界! 🙂"}], None),
    ([{"role": "user", "content": "Tell me"}, {"role": "user", "content": "a story"}], None),
    ([{"role": "user", "content": "What is the weather like in Paris today?"}], TOOLS),
    ([{"role": "user", "content": "<|im_start|>x " + "long " * 400}], None),
    ([{"role": "user", "content": ""}], None),
]


@pytest.fixture(scope="module", params=["chatml", "qwen3_like", "llama_like"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp(request.param) / "tokenizer", request.param)


@pytest.mark.parametrize("thinking", [{}, {"enable_thinking": False}])
def test_counts_are_those_of_transformers(folder: Path, thinking: dict[str, Any]) -> None:
    counted = Counter(AutoTokenizer.from_pretrained(folder), thinking).count(PROMPTS)
    reference: Any = AutoTokenizer.from_pretrained(folder)
    reference.backend_tokenizer.no_truncation()
    reference.backend_tokenizer.no_padding()
    for (messages, tools), tokens in zip(PROMPTS, counted, strict=True):
        # Of the three only the Llama-like one wants bare functions, and refuses system prompts and users in a row.
        refused = "llama" in str(folder) and (messages[0]["role"] == "system" or len(messages) > 1)
        if refused:
            assert tokens is None
            continue
        sent = [tool | {"defer_loading": None} for tool in tools] if tools else None  # as SGLang does
        declared = [tool["function"] for tool in sent] if sent and "llama" in str(folder) else sent
        expected = reference.apply_chat_template(
            messages, tools=declared, add_generation_prompt=True, tokenize=True, return_dict=False, **thinking
        )
        assert tokens == len(expected)


def test_a_rendered_prompt_is_what_the_template_says(tmp_path: Path) -> None:
    counter = Counter(AutoTokenizer.from_pretrained(make_tokenizer(tmp_path / "t")), {"enable_thinking": False})
    assert counter.render(PROMPTS[1][0], None) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nGrüße, 世界! 🙂<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    rendered = counter.render(*PROMPTS[3])
    assert rendered is not None and json.dumps(TOOLS[0] | {"defer_loading": None}) in rendered


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for n in range(10000000) %}x{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_breaks_out_or_down_is_a_refusal(tmp_path: Path, template: str) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(make_tokenizer(tmp_path / "t"))
    tokenizer.chat_template = template
    assert Counter(tokenizer, {}).count(PROMPTS[:1]) == [None]


@pytest.mark.parametrize(
    "template", ["{% for", "{{ 1 / 0 }}", "{{ messages.append(1) }}", "{{ raise_exception('no') }}"]
)
def test_a_template_that_refuses_one_question_is_an_error(
    tmp_path: Path, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, prompts={"max_prompt_tokens": 60})
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text(template)
    recorded = tokenizers.lock_tokenizer(run.config)
    assert recorded is not None
    with pytest.raises(PlainError, match="the chat template can't write even one question as a prompt"):
        open_lengths(run, recorded)
    with pytest.raises(PlainError, match="the chat template can't write even one question as a prompt"):
        lock_inputs(run, {})
    spare = make_run(tmp_path, servers={"args": {"context-length": 160}})
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text(template)
    assert lock_inputs(spare, {}) == {}
    assert "prompts are not counted: the chat template" in capsys.readouterr().out


# --- the cache of counts ---


@given(counted=st.dictionaries(st.binary(min_size=32, max_size=32), st.none() | st.integers(0, 2**32 - 2)))
def test_counts_are_kept(tmp_path_factory: pytest.TempPathFactory, counted: dict[bytes, int | None]) -> None:
    path = tmp_path_factory.mktemp("counts") / "some" / "counts.bin"
    Counts(path).add((key.hex(), tokens) for key, tokens in counted.items())
    again = Counts(path)
    for key, tokens in counted.items():
        assert key.hex() in again and again.get(key.hex()) == tokens
    assert "ab" * 32 not in again and again.get("ab" * 32) is None


@given(torn=st.integers(1, 35))
def test_a_torn_count_is_cut_off(tmp_path_factory: pytest.TempPathFactory, torn: int) -> None:
    path = tmp_path_factory.mktemp("counts") / "counts.bin"
    Counts(path).add([("01" * 32, 7), ("02" * 32, 8)])
    path.write_bytes(path.read_bytes()[:-torn])
    counts = Counts(path)
    assert counts.get("01" * 32) == 7 and "02" * 32 not in counts
    counts.add([("03" * 32, 9)])
    assert [Counts(path).get(f"0{n}" * 32) for n in (1, 2, 3)] == [7, None, 9]


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    counts = Counts(tmp_path / "file" / "counts.bin")
    counts.add([("01" * 32, 7)])
    assert counts.get("01" * 32) == 7


# --- what is dropped ---


def frame(prompts: list[tuple[list[Any], Any]]) -> pl.DataFrame:
    rows = [
        {
            "first_id": identify(messages, tools).first_id,
            "messages": json.dumps(messages),
            "tools": None if tools is None else json.dumps(tools),
        }
        for messages, tools in prompts
    ]
    schema = {"first_id": pl.String, "messages": pl.String, "tools": pl.String}
    return pl.DataFrame(rows, schema)


def make_run(folder: Path, **changes: Any) -> Run:
    values = {
        "name": "m",
        "sources": {"a": {"path": "a.jsonl"}},
        "model": {"path": str(make_tokenizer(folder / "tokenizer"))},
        "sampling": {"max_tokens": 100},
        **changes,
    }
    return Run(folder / "results" / "m-1", config.parse(values, "c"))


def opened(run: Run) -> Lengths:
    recorded = tokenizers.lock_tokenizer(run.config)
    assert recorded is not None
    lengths = open_lengths(run, recorded)
    assert lengths is not None
    return lengths


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def words(count: int) -> tuple[list[Any], Any]:
    return [{"role": "user", "content": "x" * count}, {"role": "assistant", "content": "y" * 1000}], None


def test_prompts_over_the_limit_are_dropped_exactly(tmp_path: Path) -> None:
    lengths = opened(make_run(tmp_path, prompts={"max_prompt_tokens": 60}))
    prompts = frame([words(count) for count in range(1, 100)])
    hits = lengths.check(prompts)
    tokens = lengths.tokens(prompts)
    assert 20 < len(hits) < 80
    for at, count in enumerate(tokens):
        assert count is not None and (at in hits) == (count > 60)
    assert hits[98].repeats is None
    assert hits[98].detail == f"{tokens[98]} tokens; prompts.max_prompt_tokens is 60"


@pytest.mark.parametrize("context", [160, "160"])
def test_an_answer_must_have_room_in_the_context(tmp_path: Path, context: int | str) -> None:
    lengths = opened(make_run(tmp_path, servers={"args": {"context-length": context}}))
    prompts = frame([words(count) for count in range(1, 100)])
    hits = lengths.check(prompts)
    for at, count in enumerate(lengths.tokens(prompts)):
        assert count is not None and (at in hits) == (count + 100 > 160)
    assert "with sampling.max_tokens (100) they pass context-length (160)" in hits[98].detail


def test_what_the_template_refuses_is_kept_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, prompts={"max_prompt_tokens": 1})
    make_tokenizer(tmp_path / "tokenizer", "llama_like")
    lengths = opened(run)
    prompts = frame([PROMPTS[1], PROMPTS[0]])
    assert list(lengths.check(prompts)) == [1]
    assert lengths.tokens(prompts)[0] is None
    assert filters.tokens([lengths], prompts[:1]) == [None]
    told = capsys.readouterr().out
    assert "1 of 1 prompts have no count of tokens" in told and "the chat template refuses them (" in told


def test_long_prompts_are_counted_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = opened(make_run(tmp_path, prompts={"max_prompt_tokens": 60}))
    asked: list[int] = []

    def count(self: Counter, some: Any) -> list[int | None]:
        asked.append(len(list(some)))
        return [1] * asked[-1]

    monkeypatch.setattr(Counter, "count", count)
    monkeypatch.setattr(lengths_module, "CHARACTERS_AT_ONCE", 10_000)
    lengths.check(frame([words(4000 + n) for n in range(5)]))
    assert asked == [1] * 5


def test_no_prompt_is_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    prompts = frame([words(count) for count in range(1, 700)])
    run = make_run(tmp_path, prompts={"max_prompt_tokens": 60})
    hits = opened(run).check(prompts)
    asked: list[int] = []

    def count(self: Counter, some: Any) -> list[int | None]:
        asked.extend(1 for _ in some)
        return [1] * len(asked)

    monkeypatch.setattr(Counter, "count", count)
    assert opened(run).check(prompts) == hits and not asked
    # Another template, or what it is given, is another count.
    other = make_run(tmp_path, prompts={"max_prompt_tokens": 60}, sampling={"thinking": False})
    assert opened(other).check(prompts[:3]) == {} and len(asked) == 3
    assert len(list(home.glob("tokens/*.bin"))) == 2


# --- which tokenizer ---


def test_a_tokenizer_is_bound_by_content(tmp_path: Path) -> None:
    run = make_run(tmp_path, prompts={"max_prompt_tokens": 60})
    recorded = tokenizers.lock_tokenizer(run.config)
    assert recorded is not None
    assert [file["name"] for file in recorded["files"]] == [
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    make_tokenizer(tmp_path / "tokenizer", "chatml")
    with pytest.raises(PlainError, match="has changed since this run began"):
        open_lengths(run, recorded)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": {"max_prompt_tokens": 60}}, r"model\.path: .* holds no tokenizer"),
        ({"model": {"path": "a/b", "tokenizer": "./nowhere"}}, r"model\.tokenizer: .*nowhere is no folder here"),
        (
            {"model": {"path": "embedded:SmolLM2-135M-Instruct"}, "prompts": {"max_prompt_tokens": 60}},
            "is made with the model, when its first server starts",
        ),
    ],
)
def test_a_tokenizer_that_is_needed_and_missing_is_said(tmp_path: Path, changes: Any, message: str) -> None:
    empty = tmp_path / "empty"
    files.write_json(empty / "config.json", {})
    run = make_run(tmp_path, **{"model": {"path": str(empty)}, **changes})
    with pytest.raises(PlainError, match=message):
        tokenizers.lock_tokenizer(run.config)


def test_a_context_alone_does_not_need_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_json(tmp_path / "empty" / "config.json", {})
    servers = {"args": {"context-length": 160}}
    run = make_run(tmp_path, model={"path": str(tmp_path / "empty")}, servers=servers)
    assert tokenizers.lock_tokenizer(run.config) is None
    assert "prompts are not counted: model.path:" in capsys.readouterr().err
    embedded = make_run(tmp_path, model={"path": "embedded:SmolLM2-135M-Instruct"}, servers=servers)
    assert tokenizers.lock_tokenizer(embedded.config) is None
    assert capsys.readouterr().err == ""
    unread = make_run(tmp_path, servers=servers)
    recorded = tokenizers.lock_tokenizer(unread.config)
    assert recorded is not None
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    recorded = tokenizers.lock_tokenizer(unread.config)
    assert recorded is not None and open_lengths(unread, recorded) is None
    assert "can't be loaded" in capsys.readouterr().out


def test_none_and_no_limit_count_nothing(tmp_path: Path) -> None:
    servers = {"args": {"context-length": 160}}
    off = make_run(tmp_path, model={"path": str(tmp_path / "tokenizer"), "tokenizer": "none"}, servers=servers)
    assert tokenizers.lock_tokenizer(off.config) is None
    assert tokenizers.lock_tokenizer(make_run(tmp_path).config) is None


def test_code_of_a_repository_is_never_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, prompts={"max_prompt_tokens": 60})
    folder = tmp_path / "tokenizer"
    settings = files.read_json(folder / "tokenizer_config.json")
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    files.write_json(folder / "tokenizer_config.json", settings)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    try:
        opened(run)
    except PlainError as error:
        assert "can't be loaded" in str(error)
    assert not (tmp_path / "ran").exists()


def test_a_template_of_the_servers_counts(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}")
    servers = {"args": {"chat-template": str(template)}}
    lengths = opened(make_run(tmp_path, prompts={"max_prompt_tokens": 2}, servers=servers))
    prompts = frame([([{"role": "user", "content": "~"}], None), ([{"role": "user", "content": "~^~^"}], None)])
    assert list(lengths.check(prompts)) == [1]
    assert lengths.tokens(prompts)[0] == 1
    run = make_run(tmp_path, prompts={"max_prompt_tokens": 2}, servers=servers)
    recorded = tokenizers.lock_tokenizer(run.config)
    assert recorded is not None
    template.write_text("{{ messages[0].content }}!")
    with pytest.raises(PlainError, match=r"chat-template: .*own\.jinja has changed since this run began"):
        open_lengths(run, recorded)
    template.write_bytes(b"{{ messages[0].content }}\xff")
    with pytest.raises(PlainError, match=r"chat-template: .*own\.jinja is not UTF-8 text"):
        tokenizers.lock_tokenizer(run.config)
    named = make_run(tmp_path, prompts={"max_prompt_tokens": 2}, servers={"args": {"chat-template": "chatml"}})
    with pytest.raises(PlainError, match=r"chatml is no \.jinja file here"):
        tokenizers.lock_tokenizer(named.config)

"""Recorded answers through real chat templates: where a mask begins and ends, and what can't be used."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.standin.tiny_tokenizer import make_tokenizer
from tests.unit.training_cases import completion, make_run
from workflow_scripts import files
from workflow_scripts.config import Training
from workflow_scripts.prompts import split
from workflow_scripts.records import Message
from workflow_scripts.run import Run
from workflow_scripts.training.recorded import Recorded, Renderings
from workflow_scripts.training.rows import Rows

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL: Any = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
ASKED: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the weather?"}]


def tokenizer(folder: Path, template: str) -> Any:
    return AutoTokenizer.from_pretrained(make_tokenizer(folder, template))


# What the target would have had to say after the opening of its answer, thinking or not.
SAID = {
    ("chatml", None): "It rains.<|im_end|>",
    ("qwen3", None): "<think>\n\n</think>\n\nIt rains.<|im_end|>",
    ("qwen3", False): "It rains.<|im_end|>",
    ("qwen3_6", None): "\n</think>\n\nIt rains.<|im_end|>",
    ("qwen3_6", False): "It rains.<|im_end|>",
}


@pytest.mark.parametrize("case", SAID)
def test_the_mask_begins_where_the_template_opens_an_answer_and_ends_with_the_turn(
    case: tuple[str, bool | None], tmp_path: Path
) -> None:
    template, thinking = case
    own = tokenizer(tmp_path, template)
    kwargs = {} if thinking is None else {"enable_thinking": thinking}
    sampling = {"chat_template_kwargs": kwargs}
    messages: list[Message] = [*ASKED, {"role": "assistant", "content": "It rains."}]
    turn = Renderings(own).turn(messages, None, sampling)
    asked = own.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True, **kwargs)
    assert turn["prompt_token_ids"] == own(asked, add_special_tokens=False)["input_ids"]
    assert (turn["class"], own.decode(turn["response_token_ids"])) == ("complete", SAID[case])


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tokenizer(tmp_path_factory.mktemp("chatml"), "chatml")


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda text: text == text.strip() and "<|" not in text  # templates trim, and a text may spell a special token
)


@given(asked=texts, said=texts, longer=st.integers(0, 40))
def test_a_row_decodes_to_the_stored_text(chatml: Any, asked: str, said: str, longer: int) -> None:
    messages: list[Message] = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    turn = Renderings(chatml).turn(messages, None, {})
    window = len(turn["prompt_token_ids"]) + len(turn["response_token_ids"]) + longer
    training = Training(min_supervised_tokens=1, max_tokens=window)
    answered = completion("p", turn) | {"messages": messages}
    (row,) = Rows(training, len(chatml), "").of(answered)
    supervised = row.mask.astype(bool)
    assert chatml.decode(row.ids[supervised]) == f"{said}<|im_end|>"
    assert chatml.decode(row.ids[~supervised]) == (f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n")


def test_thoughts_and_calls_are_the_answers_too(tmp_path: Path) -> None:
    own = tokenizer(tmp_path, "qwen3")
    called: Message = {"role": "assistant", "content": "", "reasoning_content": "Look it up.", "tool_calls": [CALL]}
    result: Message = {"role": "tool", "content": "rain", "tool_call_id": "1"}
    renderings = Renderings(own)
    first = renderings.turn([*ASKED, called], [TOOL], {})
    said = own.decode(first["response_token_ids"])
    assert first["class"] == "tool_call" and said.startswith("<think>\nLook it up.\n</think>")
    assert '{"name": "weather", "arguments": {"city": "Paris"}}' in said and said.endswith("</tool_call><|im_end|>")
    second = renderings.turn([*ASKED, called, result, {"role": "assistant", "content": "Rain."}], [TOOL], {})
    assert own.decode(second["response_token_ids"]).endswith("Rain.<|im_end|>")
    assert "rain\n</tool_response>" in own.decode(second["prompt_token_ids"])


def test_what_the_template_refuses_or_writes_otherwise_is_told(tmp_path: Path) -> None:
    own = tokenizer(tmp_path, "chatml")
    messages: list[Message] = [*ASKED, {"role": "assistant", "content": "It rains."}]
    own.chat_template = "{{ raise_exception('no') }}"
    assert Renderings(own).turn(messages, None, {})["unusable"] == "refused by the template"
    own.chat_template = "{% if add_generation_prompt %}open{% else %}{{ messages | length }}{% endif %}"
    assert "opens an answer otherwise" in Renderings(own).turn(messages, None, {})["unusable"]


def test_an_answer_whose_first_token_reaches_back_is_tokenized_by_itself(tmp_path: Path) -> None:
    own = tokenizer(tmp_path, "chatml")
    own.chat_template = "{{ messages[0].content }}{% if messages | length > 1 %}{{ messages[1].content }}{% endif %}"
    asked, answer = "What is the wea", "ther like"  # "weather" is one token or few
    turn = Renderings(own).turn(
        [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}], None, {}
    )
    assert turn["prompt_token_ids"] == own(asked, add_special_tokens=False)["input_ids"]
    assert turn["response_token_ids"] == own(answer, add_special_tokens=False)["input_ids"]
    whole = own(asked + answer, add_special_tokens=False)["input_ids"]
    assert whole != turn["prompt_token_ids"] + turn["response_token_ids"]


def test_the_templates_variables_are_in_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    run = make_run(tmp_path, answers="recorded")
    files.write_json(run.lock, {"sources": {}})
    config = files.read_json(run.folder / "run.yaml")
    config["model"]["tokenizer"] = str(make_tokenizer(tmp_path / "tokenizer", "qwen3"))
    found = []
    for thinking in (True, False, True):
        files.write_json(run.folder / "run.yaml", config | {"sampling": {"thinking": thinking}})
        found.append(Recorded(Run(run.folder)).fingerprint)
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(("turns", "count"), [("first", 1), ("all", 2)])
def test_the_turns_and_the_templates_variables_are_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: str, count: int
) -> None:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    run = make_run(tmp_path, answers="recorded")
    files.write_json(run.lock, {"sources": {}})
    config = files.read_json(run.folder / "run.yaml")
    config["model"]["tokenizer"] = str(make_tokenizer(tmp_path / "tokenizer", "qwen3_6"))
    more = {"prompts": {"turns": turns}, "sampling": {"thinking": False}}
    files.write_json(run.folder / "run.yaml", config | more)
    old: Message = {"role": "assistant", "content": "It rains."}
    said = [*ASKED, old, ASKED[1], old]
    prompt: Any = {"prompt_id": "p", "source": "a", "messages": said, "tools": None}
    monkeypatch.setattr(split, "recorded", lambda _: [prompt])
    (answered,) = Recorded(Run(run.folder)).conversations()
    own: Any = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    texts = [own.decode(turn["response_token_ids"]) for turn in answered["turns"]]
    assert texts == [SAID["qwen3_6", False]] * count

"""Responses decoded by a model's tokenizer.json."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.standin.tiny_tokenizer import make_tokenizer
from workflow_scripts.completions.decoding import decoder


def test_ids_are_decoded_whole_and_with_special_tokens(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer")  # whose file says to cut and to pad
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|>What is the weather like in Paris today? Was für ein Tag! 天气<|im_end|>"
    decode = decoder(folder / "tokenizer.json")
    assert decode is not None and decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert decode([]) == ""


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_tokenizer(tmp_path_factory.mktemp("tokenizer")) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens(["<added>", "in between", "Straße 天", "\u0100"])
    tokenizer.save(str(path))
    return path


@given(ids=st.lists(st.integers(0, 340)))
def test_ids_are_decoded_as_tokenizers_does(tokenizer_json: Path, ids: list[int]) -> None:
    """Bytes that are no text are, too, and ids that name no token."""
    decode = decoder(tokenizer_json)
    assert decode is not None
    assert decode(ids) == Tokenizer.from_file(str(tokenizer_json)).decode(ids, skip_special_tokens=False)


def test_a_file_that_can_not_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {}}')
    assert decoder(path) is None
    assert f"responses are not decoded: {path} can't be read" in capsys.readouterr().out

"""The parts of the launcher that need no SGLang: the key and the log."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from workflow_scripts.serving import launch, sglang_server


@pytest.fixture(autouse=True)
def record_factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


def test_the_key_is_masked_in_texts_and_arguments(caplog: pytest.LogCaptureFixture) -> None:
    sglang_server.mask_in_logs("sk-123")
    with caplog.at_level(logging.INFO):
        logging.info("server_args={'api_key': 'sk-123'}")
        logging.info("%s and %d", {"api_key": "sk-123"}, 7)
        logging.info("%s stays %d", "all else", 7)
    assert caplog.messages == ["server_args={'api_key': '[key]'}", "{'api_key': '[key]'} and 7", "all else stays 7"]
    assert caplog.records[2].args == ("all else", 7)  # formatters of access logs read them


def test_a_record_that_can_not_be_formatted_is_left_to_logging() -> None:
    sglang_server.mask_in_logs("sk-123")
    record = logging.getLogRecordFactory()("name", logging.INFO, "file", 1, "%d", ("no number",), None)
    assert record.msg == "%d"


def test_the_key_comes_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sglang_server.KEY_FILE_VARIABLE, raising=False)
    assert sglang_server.read_key() is None
    (tmp_path / "key").write_text("sk-123\n")
    monkeypatch.setenv(sglang_server.KEY_FILE_VARIABLE, str(tmp_path / "key"))
    assert sglang_server.read_key() == "sk-123"


def test_the_launcher_and_its_caller_agree_on_names() -> None:
    assert sglang_server.KEY_FILE_VARIABLE == launch.KEY_FILE_VARIABLE
    assert sglang_server.ENGINE_VARIABLE == launch.ENGINE_VARIABLE

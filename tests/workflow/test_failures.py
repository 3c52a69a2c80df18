"""Requests that go wrong: what is tried again, what fails for good, and what the next run goes on with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standin.project import Project
from tests.standin.running import Server, running_server
from workflow_scripts import files


@pytest.fixture
def server(prepared: Project) -> Iterator[Server]:
    """A stand-in that runs outside of the project, which uses it."""
    with running_server(prepared.folder / "requests.jsonl") as server:
        prepared.config["servers"]["urls"] = [server.url]
        yield server


def test_faults_that_pass_are_tried_again(prepared: Project, server: Server) -> None:
    server.start(next_statuses=[503, 429, 500], garbage=2, abort=2, wrong_id=2)
    result = prepared.run()
    assert result.code == 0, result.output
    server.stop()
    prepared.audit()
    assert len(prepared.requests()) == 24 + 9
    assert prepared.server_starts() == 0 and files.read_json(prepared.made.summary)["failures"] == 0


def test_a_prompt_that_is_too_long_is_a_failure_and_the_run_goes_on(fresh: Project) -> None:
    rows = [{"prompt": text, "response": ""} for text in ("Short?", "Too long? " * 500, "Short again?")]
    fresh.write_rows("questions", rows)
    result = fresh.finish()
    failed = [row for path in fresh.made.folder.glob("completions/*.failures.*") for row in files.read_jsonl_zst(path)]
    assert [(row["class"], row["source"], row["attempts"], row["final"]) for row in failed] == [
        ("too_long", "questions", 1, True)
    ]
    assert "maximum context length" in failed[0]["reason"]
    assert "  failures              1  (1 too_long)\n" in result.output
    assert len(fresh.requests()) == 15


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_server_that_refuses_the_key_ends_it_with_a_plain_line(
    prepared: Project, tmp_path: Path, key: str | None
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("open-sesame")
    with running_server(prepared.folder / "requests.jsonl", key_file) as server:
        server.start()
        prepared.config["servers"]["urls"] = [server.url]
        env = {} if key is None else {"DRAFTMILL_SERVER_KEY": key}
        result = prepared.run(**env)
        assert result.code != 0 and "Traceback" not in result.output, result.output
        assert result.lines(f"error: {server.url}/server_info: the server refuses the key (HTTP 401); for servers.urls")
        assert prepared.requests() == []

        assert prepared.run(DRAFTMILL_SERVER_KEY="open-sesame").code == 0
        server.stop()
        prepared.audit()
        assert b"open-sesame" not in b"".join(
            path.read_bytes() for path in prepared.results.rglob("*") if path.is_file()
        )


def test_a_server_that_is_away_leaves_open_answers_to_the_next_run(prepared: Project, server: Server) -> None:
    server.start(delay=0.3)
    run = prepared.start()
    prepared.wait_for_answers(6)
    server.stop()
    result = run.wait()
    assert result.code != 0 and "Traceback" not in result.output, result.output
    assert "are safe in its journal" in result.output and "unreachable: ClientConnectorError" in result.output
    assert "the same line again goes on from here" in result.output
    safe = prepared.journaled()
    assert 6 <= safe < 24
    assert len(list(prepared.made.folder.glob("completions/0????.json"))) < 3 and not prepared.made.summary.exists()

    before = len(prepared.requests())
    server.start()
    assert prepared.run().code == 0
    server.stop()
    prepared.audit()
    assert len(prepared.requests()) - before == 24 - safe
    # and only what was in flight when the server went was asked twice
    assert before - safe <= 4

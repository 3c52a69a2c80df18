"""Deaths of the real embedded store and its supervisor, in the midst of an upload."""

import base64
import random
from typing import Any

import pytest

from tests.integration.deaths import kill
from tests.integration.real_project import SECONDS
from tests.integration.real_store import check_bucket, embedded_store
from tests.standin.project import Project, Running
from tests.standin.waiting import until
from workflow_scripts.serving.environment import Environment

BIG_ROWS, BIG_ROW_BYTES = 12, 12 << 20  # rows over 16 MiB are rejected
BEGUN_BYTES = 8 << 20  # more than all else that a run stores; SeaweedFS writes an object in pieces of that size


def write_big_rows(project: Project) -> None:
    """Chats with tools that are described at great length, by random text: a chunk of a hundred and fifty megabytes."""
    chance = random.Random(0)
    rows: list[Any] = []
    for number in range(BIG_ROWS):
        text = base64.b85encode(chance.randbytes(BIG_ROW_BYTES * 4 // 5)).decode()
        tool = {"name": "tool", "description": text, "parameters": {"type": "object", "properties": {}}}
        rows.append({"messages": [{"role": "user", "content": f"Chat {number}?"}], "tools": [tool]})
    project.write_rows("chats", rows)


def stored_bytes(project: Project) -> int:
    """The size of all that the store keeps, half objects too."""
    total = 0
    for path in (project.results / ".store" / "data").rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # it is gone since it was listed
            pass
    return total


def start_and_wait_for_upload(project: Project) -> tuple[Running, int]:
    """Start the run, and return when the chunk's first bytes are in the store; and what was stored before."""
    before = stored_bytes(project)
    running = project.start()
    until(lambda: stored_bytes(project) > before + BEGUN_BYTES or running.process.poll() is not None, SECONDS)
    assert running.process.poll() is None, running.output
    return running, before


@pytest.mark.timeout(1800)
def test_an_upload_outlives_its_store(fresh: Project, seaweedfs: Environment) -> None:
    (fresh.home / "envs" / seaweedfs.folder.name).symlink_to(seaweedfs.folder)
    fresh.config["publish"] = {"store": "embedded", "bucket": "drafts", "prefix": "deaths/"}
    fresh.config["chunks"] = {"count": 1}
    write_big_rows(fresh)
    for victim in ("service", "supervisor"):
        running, before = start_and_wait_for_upload(fresh)
        kill(fresh.results / ".store", victim)
        assert stored_bytes(fresh) - before < fresh.made.completions("00000").stat().st_size, "the upload was over"
        result = running.wait(SECONDS)
        assert result.code != 0, result.output
        assert (said := result.lines("error: ")), result.output
        assert all("no answer" in line and "the embedded store died or hangs" in line for line in said), said
        assert "Traceback" not in result.output, result.output
        fresh.no_process_left()
        with embedded_store(fresh.made) as client:
            keys = [item["Key"] for item in client.list_objects_v2(Bucket="drafts")["Contents"]]
        assert not any(key.endswith("00000.jsonl.zst") for key in keys)
    fresh.finish()
    with embedded_store(fresh.made) as client:
        paths = check_bucket(fresh.made, client, "drafts", "deaths/")
    assert "completions/00000.jsonl.zst" in paths
    fresh.no_process_left()

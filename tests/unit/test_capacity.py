"""How many servers and leases a config asks for."""

from typing import Any

import pytest

from workflow_scripts.config import Config, parse
from workflow_scripts.serving import capacity


def config(servers: dict[str, Any], chunks: dict[str, int] | None = None) -> Config:
    values = {
        "name": "small",
        "sources": {"a": {"path": "a.jsonl", "shape": "messages", "take": 1000}},
        "model": {"path": "model"},
        "chunks": chunks or {"size": 100},
        "servers": servers,
    }
    return parse(values, "test")


@pytest.mark.parametrize(
    ("servers", "gpus", "count"),
    [
        ({}, 8, 8),
        ({}, 0, 1),
        ({"gpus_per_server": 4}, 8, 2),
        ({"count": 3}, 8, 3),
        ({"engine": "sglang-cpu"}, 8, 1),
        ({"engine": "sglang-cpu", "count": 2}, 0, 2),
        ({"urls": ["http://a:1", "http://b:1"]}, 8, 2),
    ],
)
def test_servers(monkeypatch: pytest.MonkeyPatch, servers: dict[str, Any], gpus: int, count: int) -> None:
    monkeypatch.setattr(capacity, "gpu_count", lambda: gpus)
    assert capacity.server_count(config(servers)) == count


@pytest.mark.parametrize(
    ("servers", "leases"),
    [
        ({"leases": 5}, 5),
        ({}, 4),  # 64 seats are assumed, of 100 prompts a chunk: the front and 2.56
        ({"args": {"max-running-requests": 16}}, 2),
        ({"args": {"max-running-requests": 200}}, 9),
        ({"engine": "sglang-cpu"}, 2),
    ],
)
def test_leases_fill_the_tails(servers: dict[str, Any], leases: int) -> None:
    assert capacity.leases_per_server(config(servers)) == leases


def test_cores_cut_leases_and_it_is_said() -> None:
    assert capacity.lease_count(config({"count": 8, "leases": 2}), None) == (16, None)
    assert capacity.lease_count(config({"count": 8, "leases": 2}), 14) == (16, None)
    cut, note = capacity.lease_count(config({"count": 8, "leases": 2}), 2)
    assert cut == 4 and note is not None and "--cores 14 gives them all" in note

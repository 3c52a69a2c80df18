"""What the servers of a run say of themselves now. Nothing is asked of them but to tell."""

import json
import os
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from workflow_scripts.completions.progress import in_flight
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.endpoints import KEY_VARIABLE

TIMEOUT = 2.0  # seconds; a server that reads a long prompt answers late


@dataclass(frozen=True)
class Server:
    """A server of the run: where it is, if it is anywhere."""

    name: str
    number: int
    status: str  # starting, ready, failed, ended, on another host; of one that is not ours: elsewhere
    url: str | None
    key: str | None


def known(run: Run) -> list[Server]:
    """The servers that the run has used or can use."""
    if run.config.servers.urls:
        key = os.environ.get(KEY_VARIABLE)
        return [Server(url, number, "elsewhere", url, key) for number, url in enumerate(run.config.servers.urls)]
    found = []
    for folder in sorted(run.servers.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            state = supervisor.read_state(folder)
        except PermissionError:  # another user's: the run's other files tell the rest
            continue
        if state is None:
            continue
        status: str = state.status
        if status == "ready" and not supervisor.is_live(state):
            status = "ended" if state.supervisor.host == socket.gethostname() else "on another host"
        live = status == "ready"
        key = (folder / "key").read_text().strip() if live else None
        found.append(Server(state.name, int(folder.name), status, state.facts["url"] if live else None, key))
    return found


def told(run: Run, servers: list[Server]) -> list[dict[str, Any]]:
    """{"name", "number", "status", "in_flight", "running", "queued", "tokens_per_second"} of each; null: not told."""
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        loads = list(pool.map(_loads, servers))
    return [
        {
            "name": server.name,
            "number": server.number,
            "status": server.status,
            "in_flight": in_flight(run.server(server.number)),
            "running": _sum(load, "num_running_reqs"),
            "queued": _sum(load, "num_waiting_reqs"),
            "tokens_per_second": _sum(load, "gen_throughput"),
        }
        for server, load in zip(servers, loads, strict=True)
    ]


def _loads(server: Server) -> list[dict[str, Any]]:
    """Of each data-parallel rank what /v1/loads says (SGLang 0.5.23); none where it does not answer."""
    if server.url is None:
        return []
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    request = urllib.request.Request(f"{server.url}/v1/loads?include=core", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as reply:
            loads: list[dict[str, Any]] = json.load(reply)["loads"]
            return [load for load in loads if isinstance(load, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _sum(loads: list[dict[str, Any]], key: str) -> float | None:
    values = [load[key] for load in loads if isinstance(load.get(key), int | float)]
    return sum(values) if values else None

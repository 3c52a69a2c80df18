"""From a leased server to an address that answers: launched here when first needed, or running already."""

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run
from workflow_scripts.serving import environment, launch, model, supervisor
from workflow_scripts.serving.launch import Granted

KEY_VARIABLE = "DRAFTMILL_SERVER_KEY"


@dataclass(frozen=True)
class Endpoint:
    """A server that answers. `start` counts the starts of a launched server: another number, another process."""

    name: str
    url: str
    key: str | None
    model: str
    granted: Granted
    folder: Path | None = None
    start: int = 0

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def alive(self) -> bool:
        """Whether the process behind it lives; of a server that is not ours nothing is known but its answers."""
        if self.folder is None:
            return True
        state = supervisor.read_state(self.folder)
        return state is not None and state.started == self.start and supervisor.is_live(state)


def connect(run: Run, number: int) -> Endpoint:
    """The endpoint of server `number`, started if it does not run.

    Raises PlainError if it can't be had, or granted a shorter context than the config asks.
    """
    servers = run.config.servers
    if servers.urls:
        url, key = servers.urls[number], os.environ.get(KEY_VARIABLE)
        endpoint = _endpoint(run, url, key, url, None, 0)
    else:
        folder = run.server(number)
        state = supervisor.ensure(folder, lambda: _service(run, number))
        key = (folder / "key").read_text()
        endpoint = _endpoint(run, state.facts["url"], key, f"server {number}", folder, state.started)
    asked = servers.args.get("context-length")
    if isinstance(asked, int) and endpoint.granted.context_length < asked:
        raise PlainError(
            f"{endpoint.name} granted a context of {endpoint.granted.context_length} tokens, "
            f"servers.args.context-length asks for {asked}"
        )
    return endpoint


def _endpoint(run: Run, url: str, key: str | None, name: str, folder: Path | None, start: int) -> Endpoint:
    granted = launch.granted(url, key)
    return Endpoint(name, url, key, granted.model, granted, folder, start)


def _service(run: Run, number: int) -> supervisor.Service:
    """What to start as server `number`: environment and model made sure of, a free port, a new key."""
    config = run.config
    built = environment.ensure(config.servers.engine)
    weights = model.ensure(config.model.path, config.model.revision, built.python)
    folder = run.server(number)
    key_file = folder / "key"
    files.write_bytes(key_file, secrets.token_urlsafe(32).encode(), mode=0o600)
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    return supervisor.Service(
        name=f"server {number}",
        argv=[
            str(built.python),
            str(launch.LAUNCHER),
            *launch.flags(config.servers.engine, config.servers.args, weights, config.model.path, port),
        ],
        env=launch.environ(config.servers.engine, key_file, number, config.servers.gpus_per_server),
        cwd=str(folder),
        ready_url=f"{url}/health",
        ready_status=200,
        start_timeout=config.servers.start_timeout,
        grace=8.0,
        hold_locks=[str(environment.lock_path(built))],
        facts={"url": url},
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

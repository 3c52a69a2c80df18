"""From a leased server to an address that answers: launched here when first needed, or running already."""

import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts import files, identity, processes
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.processes import ProcessId
from workflow_scripts.run import Run
from workflow_scripts.serving import launch, supervisor
from workflow_scripts.serving.launch import Granted

KEY_VARIABLE = "DRAFTMILL_SERVER_KEY"
STARTS = 3
GRACE_SECONDS = 8.0  # SGLang takes 4 to 8 s from SIGTERM to its exit


@dataclass(frozen=True)
class Endpoint:
    """A server that answers. `model` identifies the target model by content, or by name where it is not local.

    `start` counts the starts of a launched server: another number, another process.
    """

    name: str
    url: str
    key: str | None
    granted: Granted
    model: dict[str, Any]
    folder: Path | None = None
    start: int = 0
    supervisor: ProcessId | None = None

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
    config = run.config
    if config.servers.urls:
        url, key = config.servers.urls[number], _key()
        endpoint = Endpoint(
            url,
            url,
            key,
            launch.granted(url, key),
            identity.model_identity(config.model.path, config.model.revision, identity.ContentHashes()),
        )
    else:
        folder = run.server(number)
        state = _start(run, number)
        url, key = state.facts["url"], (folder / "key").read_text()
        granted = launch.granted(url, key)
        endpoint = Endpoint(
            f"server {number}", url, key, granted, state.facts["model"], folder, state.started, state.supervisor
        )
    asked = config.servers.args.get("context-length")
    if isinstance(asked, int) and endpoint.granted.context_length < asked:
        raise PlainError(
            f"{endpoint.name} granted a context of {endpoint.granted.context_length} tokens, "
            f"servers.args.context-length asks for {asked}"
        )
    return endpoint


def _start(run: Run, number: int) -> supervisor.State:
    """The server's state, ready. After three failed starts in one run of Snakemake it is not tried again there.

    Without that bound each of a run's chunks would start a server in vain, three times over, for days.
    """
    folder, here = run.server(number), str(processes.run_process())
    before = supervisor.read_state(folder)
    if before is not None and supervisor.is_live(before):
        return before
    record = folder / "failed_starts.json"
    known = files.read_json(record) if record.exists() else {}
    failed: list[int] = known["starts"] if known.get("run") == here else []
    if len(failed) >= STARTS:
        raise PlainError(f"server {number} did not start {STARTS} times; mend that, then the same line goes on")
    began = time.monotonic()
    try:
        state = supervisor.ensure(folder, lambda: _service(run, number))
    except PlainError:
        after = supervisor.read_state(folder)
        # Jobs that waited for the same start count it once; what failed before a start has no number of its own.
        number_of_start = after.started if after is not None and after != before else -1 - len(failed)
        files.write_json(record, {"run": here, "starts": sorted({*failed, number_of_start})})
        raise
    record.unlink(missing_ok=True)
    say(f"server {number} answers after {time.monotonic() - began:.0f} s")
    return state


def _service(run: Run, number: int) -> supervisor.Service:
    """What to start as server `number`: environment and model made sure of, its GPUs, a free port, a new key."""
    from workflow_scripts.serving import environment, model  # they take long to import, and few jobs start a server

    servers = run.config.servers
    say(f"starting server {number}; its log: {run.server(number) / 'service.log'}")
    gpus = (
        [] if servers.engine == "sglang-cpu" else launch.gpus_of(number, servers.gpus_per_server, launch.visible_gpus())
    )
    built = environment.ensure(servers.engine)
    weights = model.ensure(run.config.model.path, run.config.model.revision, built.python)
    folder = run.server(number).absolute()
    key_file = folder / "key"
    files.write_bytes(key_file, secrets.token_urlsafe(32).encode(), mode=0o600)
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    flags = launch.flags(
        servers.engine, servers.args, weights, run.config.model.path.rpartition(":")[2], port, servers.gpus_per_server
    )
    return supervisor.Service(
        name=f"server {number}",
        argv=launch.command(built.python, flags),
        env=launch.environ(servers.engine, key_file, gpus),
        cwd=str(folder),
        ready_url=f"{url}/health",
        ready_status=200,
        start_timeout=servers.start_timeout,
        grace=GRACE_SECONDS,
        hold_locks=[str(environment.lock_path(built))],
        facts={"url": url, "model": identity.model_identity(str(weights), None, identity.ContentHashes())},
    )


def _key() -> str | None:
    """The key of servers that run already. PlainError, which does not show it, if no header can hold it."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise PlainError(f"{KEY_VARIABLE} holds characters that no HTTP header can; set it to the key alone")
    return key or None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

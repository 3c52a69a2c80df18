"""From a leased server to an address that answers: launched here when first needed, or running already."""

import os
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from workflow_scripts import files, identity, processes
from workflow_scripts.completions.marks import TAGS
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.processes import ProcessId
from workflow_scripts.run import Run
from workflow_scripts.serving import launch, leases, standing, supervisor
from workflow_scripts.serving.launch import Granted
from workflow_scripts.serving.standing import ServerOut

KEY_VARIABLE = "DRAFTMILL_SERVER_KEY"
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
    vocabulary: int | None = None  # token ids are below it; None where that is not known
    tokenizer: Path | None = None  # the model's tokenizer.json, if that is here
    tags: dict[str, int] = field(default_factory=dict)  # ids of the tokens that part thoughts and calls from the rest
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

    Where it died before, it starts again after a wait. ServerOut if it died too often; PlainError if it granted a
    shorter context than the config asks.
    """
    config = run.config
    if config.servers.urls:
        url, key = config.servers.urls[number], server_key()
        here = Path(config.model.path) if Path(config.model.path).is_dir() else None
        tokenizer = launch.tokenizer_json(here) if here else None
        endpoint = Endpoint(
            url,
            url,
            key,
            launch.granted(url, key),
            identity.model_identity(config.model.path, config.model.revision, identity.ContentHashes()),
            launch.vocabulary(here) if here else None,
            tokenizer,
            launch.tags(tokenizer, TAGS),
        )
    else:
        endpoint = _launched(run, number, _start(run, number))
    _check_context(run, endpoint)
    return endpoint


def start_once(run: Run, number: int) -> Endpoint:
    """The endpoint of server `number`, started anew, whatever ran as it before, and once; nothing is noted of it.

    PlainError, with the log's reason, if it does not come up or grants too short a context.
    """
    folder = run.server(number)
    supervisor.stop(folder)
    before = supervisor.read_state(folder)
    try:
        state = supervisor.ensure(folder, lambda: _service(run, number))
    except PlainError as error:
        if supervisor.read_state(folder) == before:
            raise  # nothing was started
        raise PlainError("\n".join([str(error), *_known_causes(folder)])) from error
    endpoint = _launched(run, number, state)
    _check_context(run, endpoint)
    return endpoint


def _launched(run: Run, number: int, state: supervisor.State) -> Endpoint:
    folder = run.server(number)
    url, key = state.facts["url"], (folder / "key").read_text()
    return Endpoint(
        f"server {number}",
        url,
        key,
        launch.granted(url, key),
        state.facts["model"],
        state.facts["vocabulary"],
        Path(state.facts["tokenizer"]) if state.facts["tokenizer"] else None,
        state.facts["tags"],
        folder,
        state.started,
        state.supervisor,
    )


def _check_context(run: Run, endpoint: Endpoint) -> None:
    asked = run.config.servers.args.get("context-length")
    if isinstance(asked, int) and endpoint.granted.context_length < asked:
        raise PlainError(
            f"{endpoint.name} granted a context of {endpoint.granted.context_length} tokens, "
            f"servers.args.context-length asks for {asked}"
        )


def _start(run: Run, number: int) -> supervisor.State:
    """The server's state, ready; started as often as its standing allows."""
    folder = run.server(number)
    began = time.monotonic()
    ours: list[int] = []  # jobs that share the server wait for the start of one of them

    def prepare() -> supervisor.Service:
        ours.append(number)
        return _prepare(run, number)

    while True:
        before = supervisor.read_state(folder)
        if before is not None and supervisor.is_live(before):
            return before
        if reason := standing.why_out(folder):
            raise ServerOut(reason)
        try:
            state = supervisor.ensure(folder, prepare)
        except ServerOut:
            raise
        except PlainError as error:
            after = supervisor.read_state(folder)
            if after is None or after == before or after.status != "failed":
                # Nothing was started: the environment, the model, the GPUs. Another try would end so too.
                standing.take_out(folder, f"server {number}: {error}")
                raise ServerOut(f"server {number}: {error}") from error
            standing.note_death(folder, after.started, str(error), "start")
            say("\n".join([str(error), *_known_causes(folder)]))
            continue
        say(f"server {number} answers after {time.monotonic() - began:.0f} s")
        if ours:
            found = launch.granted(state.facts["url"], (folder / "key").read_text())
            say(f"server {number} granted: {launch.granted_line(found, state.facts['asked'])}")
        return state


def _known_causes(folder: Path) -> list[str]:
    """What is known to make a log end so, with what to do."""
    from workflow_scripts.machine import here, toolkit  # few starts fail
    from workflow_scripts.serving import causes, service_log

    lines = service_log.tail(folder / "service.log")
    return [f"Known cause: {cause}" for cause in causes.named("\n".join(lines), toolkit.find(here()))]


def _prepare(run: Run, number: int) -> supervisor.Service:
    """What to start as server `number`, after the wait that its deaths ask for; ServerOut if it died too often."""
    folder, name = run.server(number), f"server {number}"
    before = supervisor.read_state(folder)
    if before is not None and before.run == processes.run_process() and before.status in ("failed", "ready"):
        # Where it was ready to the end, its supervisor was killed.
        reason = before.reason or "its supervisor died"
        standing.note_death(folder, before.started, reason, _kind_of_death(folder))
    wait = standing.judge(folder, name, run.config.limits)
    if wait:
        say(f"{name} died ({standing.last_death(folder).splitlines()[0]}); it starts again in {wait:.0f} s")
        time.sleep(wait)
    return _service(run, number)


def _kind_of_death(folder: Path) -> Literal["work", "apart"]:
    return "apart" if leases.held_alone(folder) else "work"


def give_up(endpoint: Endpoint, reason: str) -> None:
    """End the server, with all that it started, unless that was done: the next `connect` starts another."""
    assert endpoint.folder is not None
    with files.file_lock(endpoint.folder / "give_up.lock"):
        state = supervisor.read_state(endpoint.folder)
        if state is None or state.started != endpoint.start or not supervisor.is_live(state):
            return
        standing.note_death(endpoint.folder, endpoint.start, reason, _kind_of_death(endpoint.folder))
        supervisor.stop(endpoint.folder)


def _service(run: Run, number: int) -> supervisor.Service:
    """What to start as server `number`: environment and model made sure of, its GPUs, a free port, a new key."""
    from workflow_scripts.serving import builds, given, model  # they take long to import, and few jobs start a server

    servers = run.config.servers
    say(f"starting server {number}; its log: {run.server(number) / 'service.log'}")
    built = builds.ensure(servers)
    weights = model.ensure(run.config.model.path, run.config.model.revision, built.python)
    tokenizer = launch.tokenizer_json(weights)
    folder = run.server(number).absolute()
    key_file = folder / "key"
    files.write_bytes(key_file, secrets.token_urlsafe(32).encode(), mode=0o600)
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    start = given.to_server(run.config, number, built, weights, port)
    argv = launch.command(built.python, start.flags)
    for line in [*start.reasons, f"command: {launch.shown(argv, start.gpus)}"]:
        say(f"server {number}: {line}")
    return supervisor.Service(
        name=f"server {number}",
        argv=argv,
        env=launch.environ(servers.engine, key_file, start.gpus, builds.variables(built)),
        cwd=str(folder),
        ready_url=f"{url}/health",
        ready_status=200,
        start_timeout=servers.start_timeout,
        grace=GRACE_SECONDS,
        hold_locks=builds.lock_paths(built),
        facts={
            "url": url,
            "asked": {name: start.flags.get(name) for name in launch.ASKED},
            "model": identity.model_identity(str(weights), None, identity.ContentHashes()),
            "vocabulary": launch.vocabulary(weights),
            "tokenizer": None if tokenizer is None else str(tokenizer),
            "tags": launch.tags(tokenizer, TAGS),
        },
    )


def server_key() -> str | None:
    """The key of servers that run already. PlainError, which does not show it, if no header can hold it."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise PlainError(f"{KEY_VARIABLE} holds characters that no HTTP header can; set it to the key alone")
    return key or None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

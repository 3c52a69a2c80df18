"""Which checks a run needs, and all that they find."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workflow_scripts.doctor import datasets, host, servers, store, target
from workflow_scripts.doctor.findings import Finding, errors, ordered
from workflow_scripts.errors import PlainError
from workflow_scripts.machine import Machine, look
from workflow_scripts.publishing import restore
from workflow_scripts.run import Run

GENERATING = frozenset({"chunk", "redriven", "environment", "model", "tune"})


@dataclass(frozen=True)
class Needs:
    """What the remaining jobs need: servers, sources, the store."""

    servers: bool = True
    sources: bool = True
    store: bool = True

    @classmethod
    def of(cls, rules: set[str]) -> "Needs":
        """By the rules of the jobs that are to run."""
        return cls(
            servers=bool(rules & GENERATING),
            sources=bool(rules & {"source", "manifest"}),
            store=any(rule.startswith("publish") for rule in rules),
        )

    @classmethod
    def left(cls, run: Run) -> "Needs":
        """By what there is of the run, here and in its bucket."""
        answered = all(run.sidecar(chunk).exists() for chunk in run.chunks()) or restore.nothing_left(run)
        return cls(servers=not answered, sources=not run.manifest.exists())


def examine(run: Run, needs: Needs, *, brief: bool, machine: Machine | None = None) -> list[Finding]:
    """All that is found, worst first. A check that fails itself is a finding, and keeps no other from being made.

    `brief` is for every start: it asks this machine alone, and nothing that takes long.
    """
    found: list[Finding] = []
    for check in _checks(run, needs, brief, machine):
        try:
            found += check()
        except PlainError as error:
            found += errors("doctor", str(error))
        except OSError as error:
            found += errors("doctor", f"{error.filename or 'a check'}: {error.strerror}")
    return ordered(found)


def _checks(run: Run, needs: Needs, brief: bool, machine: Machine | None) -> Iterator[Callable[[], list[Finding]]]:
    config = run.config
    yield lambda: host.writable(run)
    yield lambda: host.disk(run)
    yield lambda: host.inodes(run)
    yield host.clock
    ask = False  # whether the hub is asked
    if not brief:
        from workflow_scripts.sources import hub  # its libraries take a second

        asking = _asks_hub(run, needs)
        lost = hub.unreachable() if asking else None
        ask = lost is None
        yield lambda: errors("network", *([] if lost is None else [_unreachable(hub.endpoint(), lost)]))
        if asking and ask:
            yield lambda: host.clock_against(hub.endpoint())
    if needs.servers:
        yield lambda: host.open_files(run)
        if config.servers.urls:
            if not brief:
                yield lambda: servers.running(run, _server_key())
        else:
            yield from _launching(run, brief, machine, ask)
    if not brief:
        yield lambda: target.tokenizer_there(config, ask=ask)
        if needs.sources and ask:
            yield lambda: datasets.sources(run)
        if needs.store:
            yield lambda: store.rights(run)


def _asks_hub(run: Run, needs: Needs) -> bool:
    """Whether something is the hub's, and not known yet."""
    return (
        (needs.sources and datasets.to_ask(run))
        or target.tokenizer_to_ask(run.config)
        or (needs.servers and not run.config.servers.urls and target.model_to_ask(run.config))
    )


def _unreachable(endpoint: str, why: str) -> str:
    return (
        f"{endpoint} can't be reached ({why}), so its datasets and models were not looked at: see to the network and "
        f"the proxy (HTTPS_PROXY), or name a mirror as HF_ENDPOINT"
    )


def _launching(run: Run, brief: bool, machine: Machine | None, ask: bool) -> Iterator[Callable[[], list[Finding]]]:
    config = run.config
    seen = machine if machine is not None else _seen(run)
    yield host.ports
    yield lambda: servers.gpus(run, seen)
    env = servers.chosen_environment(run, seen)
    if env is not None:
        yield lambda: servers.environment_there(env)
    if config.servers.engine == "sglang":
        yield lambda: servers.compiler(seen)
        if config.servers.python is not None:
            yield lambda: servers.toolkit(seen.toolkit)
    known = target.Found(None, [])

    def model() -> list[Finding]:
        nonlocal known
        known = target.look(config, ask=ask)
        return known.findings

    yield model
    if env is not None:
        ours = {} if known.facts is None else target.flags(config, known.facts, seen)
        yield lambda: servers.flags(run, env, ours, ask=not brief)
    if (facts := known.facts) is not None:
        yield lambda: target.fits(config, facts, seen)
        yield lambda: target.template(config, facts)


def _seen(run: Run) -> Machine:
    """This machine; a run on the CPU asks nothing of its GPUs."""
    return look() if run.config.servers.engine == "sglang" else Machine(None, [], [], False, None, True)


def _server_key() -> str | None:
    from workflow_scripts.serving.endpoints import server_key

    return server_key()

"""One server's speed under the run's own load: the engine's own client, and the server's own counters.

The server is kept as full as it grants, by prompts in the sample's order. When its work is steady (steady.py), the
tokens that its scheduler makes are looked at, those of answers in flight too: answers that ended alone would tell of
the short ones.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from workflow_scripts.completions.client import Client, Task
from workflow_scripts.completions.progress import in_flight
from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.records import Completion, Failure, Prompt
from workflow_scripts.serving.endpoints import Endpoint, give_up
from workflow_scripts.serving.leases import Lease
from workflow_scripts.serving.service_log import telling_lines
from workflow_scripts.tuning.answers import Probe, Token
from workflow_scripts.tuning.decide import Measured
from workflow_scripts.tuning.steady import Look, Watch

LOOKS = 60  # in the time that is measured
LONGEST_PAUSE = 1.0  # seconds between two
LOOK_TIMEOUT = 10.0
CUT = ("cut_in_thinking", "cut_in_answer")


class Died(PlainError):
    """The server died while it was measured."""


TOKENS = "sglang:realtime_tokens_total"
SAMPLE = re.compile(r"^(sglang:\w+)(?:\{([^}]*)\})? ([-+.\deE]+)$", re.MULTILINE)
DECODED = re.compile(r'\bmode="decode"')


def read_metrics(text: str, at: float) -> Look:
    """A look, by the text of /metrics (SGLang 0.5.23), summed up over data-parallel ranks. KeyError without tokens.

    `realtime_tokens_total` grows at every step; the first token of each answer comes from its prompt's, and is not in.
    """
    found: dict[str, float] = {}
    for name, labels, value in SAMPLE.findall(text):
        if name != TOKENS or DECODED.search(labels):
            found[name] = found.get(name, 0.0) + float(value)
    return Look(
        at,
        found[TOKENS],
        found.get("sglang:num_running_reqs", 0.0),
        found.get("sglang:num_retracted_requests_total", 0.0),
    )


async def look(session: aiohttp.ClientSession, endpoint: Endpoint) -> Look | None:
    """None where the server doesn't answer in time. PlainError if it doesn't count its tokens."""
    try:
        async with (
            asyncio.timeout(LOOK_TIMEOUT),
            session.get(f"{endpoint.url}/metrics", headers=endpoint.headers()) as response,
        ):
            text = await response.text()
            if response.status != 200:
                raise PlainError(f"{endpoint.name} has no /metrics (HTTP {response.status})")
        return read_metrics(text, time.monotonic())
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
    except KeyError as error:
        raise PlainError(
            f"{endpoint.name}: its /metrics has no {error.args[0]}; it must be SGLang near 0.5.23"
        ) from error


@dataclass(frozen=True)
class Outcome:
    """What one candidate did on one server. Seconds are of steady work; where `measured` is None there was none.

    `answers` (the tokens of each that ended), `tokens`, `classes` (of turns) and `failed` are of the steady part;
    `client` is the share of a processor that this process took meanwhile.
    """

    measured: Measured | None
    ramp_seconds: float
    settled: bool
    cut_short: bool
    used_up: bool
    seats_granted: int
    seats_used: float
    retracted: int
    answers: Sequence[int]
    tokens: float
    classes: Mapping[str, int]
    failed: Mapping[str, int]
    client: float

    @property
    def failed_of(self) -> tuple[int, int]:
        """How many prompts failed, and of how many that ended."""
        failed = sum(self.failed.values())
        return failed, failed + len(self.answers)

    @property
    def truncated(self) -> float | None:
        """The share of turns that max_tokens cut."""
        turns = sum(self.classes.values())
        return sum(self.classes.get(kind, 0) for kind in CUT) / turns if turns else None


class Load:
    """The sample, sent to one server until its speed is known, see `Watch`."""

    def __init__(
        self,
        config: Config,
        endpoint: Endpoint,
        lease: Lease,
        prompts: Sequence[Prompt],
        seconds: float,
        hopeless: Callable[[Measured], bool],
    ) -> None:
        self._endpoint = endpoint
        self._lease = lease
        self._prompts = prompts
        self._client = client_of(config, endpoint, lease, self._done, self._fail)
        self._watch = Watch(seconds, len(prompts), hopeless)
        self._counted = _Counted()
        self._before_steady = _Counted()

    async def run(self) -> Outcome:
        """Raises Died, with the reason from the log, if the server dies."""
        began = time.monotonic()
        answering = asyncio.create_task(self._client.answer([Task(prompt, 0) for prompt in self._prompts]))
        looking = asyncio.create_task(self._look_on())
        try:
            await asyncio.wait([answering, looking], return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
            else:
                answering.result()  # Died, say
                self._watch.used_up = True
            return self._outcome(began)
        finally:
            self._client.stop.set()
            looking.cancel()
            await asyncio.gather(answering, looking, return_exceptions=True)

    def _done(self, completion: Completion) -> None:
        self._counted.answers.append(sum(turn["usage"]["completion_tokens"] for turn in completion["turns"]))
        self._counted.classes.update(turn["class"] for turn in completion["turns"])

    def _fail(self, failure: Failure) -> None:
        self._counted.failed[failure["class"]] += 1

    async def _look_on(self) -> None:
        """Look until enough is known."""
        pause = min(LONGEST_PAUSE, self._watch.seconds / LOOKS)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            while True:
                seen = await look(session, self._endpoint)
                if seen is not None:
                    counted = self._counted
                    was_steady = self._watch.steady_from is not None
                    # Each turn's first token comes with its prompt, and is in no counter of those that follow.
                    seen = replace(seen, tokens=seen.tokens + counted.classes.total())
                    flying = in_flight(self._lease.folder)
                    if self._watch.is_enough(seen, flying, len(counted.answers), counted.failed.total()):
                        return
                    if not was_steady:
                        self._before_steady = counted.copy()
                await asyncio.sleep(pause)

    def _outcome(self, began: float) -> Outcome:
        watch, now, steady = self._watch, self._counted, self._watch.steady
        before = self._before_steady if steady else _Counted()
        seconds = steady[-1].at - steady[0].at if steady else 0.0
        return Outcome(
            measured=watch.speed(),
            ramp_seconds=steady[0].at - began if steady else time.monotonic() - began,
            settled=watch.settled,
            cut_short=watch.cut_short,
            used_up=watch.used_up,
            seats_granted=self._endpoint.granted.seats,
            seats_used=sum(one.running for one in steady) / len(steady) if steady else 0.0,
            retracted=round(steady[-1].retracted - steady[0].retracted) if steady else 0,
            answers=now.answers[len(before.answers) :],
            tokens=steady[-1].tokens - steady[0].tokens if steady else 0.0,
            classes=now.classes - before.classes,
            failed=now.failed - before.failed,
            client=(time.process_time() - before.cpu) / seconds if seconds else 0.0,
        )


@dataclass
class _Counted:
    """What has come so far: answers' tokens, turns by class, failures by class; `cpu` is this process's until then."""

    answers: list[int] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    cpu: float = 0.0

    def copy(self) -> "_Counted":
        return _Counted(self.answers.copy(), self.classes.copy(), self.failed.copy(), time.process_time())


async def ask(config: Config, endpoint: Endpoint, lease: Lease, prompts: Sequence[Prompt]) -> dict[str, list[Token]]:
    """Greedy answers to a few prompts, all at once, by their ids; what can't be answered is left out."""
    probes = {prompt["prompt_id"]: Probe(prompt, config.sampling) for prompt in prompts}
    client = client_of(config, endpoint, lease, lambda _: None, lambda _: None)
    await client.answer([Task(probe.prompt, 0, conversation=probe) for probe in probes.values()])
    return {prompt_id: probe.said for prompt_id, probe in probes.items() if probe.said}


def client_of(
    config: Config,
    endpoint: Endpoint,
    lease: Lease,
    done: Callable[[Completion], None],
    failed: Callable[[Failure], None],
) -> Client:
    """The engine's client, for a server whose death is an answer: it is not started again."""

    ended: list[str] = []  # why the watchdog ended it

    async def reconnect(dead: Endpoint) -> Endpoint:
        raise Died(f"{dead.name} was ended: {ended[-1]}" if ended else why_dead(dead))

    async def end(hung: Endpoint, reason: str) -> None:
        ended.append(reason)
        await asyncio.to_thread(give_up, hung, reason)

    return Client(
        endpoint=endpoint,
        sampling=config.sampling,
        limits=config.limits,
        seats=lease,
        reconnect=reconnect,
        give_up=end,
        last_words=lambda: why_dead(endpoint),
        crashed=lambda _endpoint, _lost: None,
        done=done,
        failed=failed,
        drain=0.0,
    )


def why_dead(endpoint: Endpoint) -> str:
    """What a dead server's log has to say."""
    lines = telling_lines(endpoint.folder / "service.log") if endpoint.folder is not None else []
    return "\n  ".join([f"{endpoint.name} died at work. From its log:", *lines])

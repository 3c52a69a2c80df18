"""One job's HTTP client: as many requests in flight as its lease allows, faults met by their policy."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import aiohttp
import orjson

from workflow_scripts import files
from workflow_scripts.completions.conversation import Conversation
from workflow_scripts.completions.decoding import decoder
from workflow_scripts.completions.faults import Fault, from_status
from workflow_scripts.completions.replies import Answerer
from workflow_scripts.completions.watchdog import Watchdog
from workflow_scripts.config import Limits, Sampling
from workflow_scripts.records import Completion, Failure, Prompt
from workflow_scripts.serving.endpoints import Endpoint
from workflow_scripts.serving.load import abort

# A new request every 2 ms at most, so that a thousand of them don't knock in the same instant.
STAGGER_SECONDS = 0.002
POLL_SECONDS = 0.1
ABORT_SECONDS = 5.0
DEATH_SECONDS = 2.0
LONGEST_WAIT = 30  # times limits.retry_wait
CRASHES_ALONE = 2  # of which the second comes on a server that has done nothing else
SUSPECT_CRASHES = 2  # deaths of its server with a prompt in flight, after which it is tried apart from the rest


@dataclass(eq=False)
class Task:
    """One answer to be made: a prompt, the number of the sample, and what it has cost so far.

    Its conversation's turns are made one after the other; `attempts` are those at the present one. `crashes` counts
    deaths of its server while it was in flight, `crashes_alone` those with nothing else in flight.
    """

    prompt: Prompt
    sample: int
    crashes: int = 0
    crashes_alone: int = 0
    attempts: int = 0
    answered_before: int | None = None  # answers to others when its first try failed
    conversation: Conversation | None = None  # from its first try on


class _Request(NamedTuple):
    """A task at a server, and who waits for the reply."""

    task: Task
    endpoint: Endpoint
    waiting: "asyncio.Task[Any] | None"


class Seats(Protocol):
    """What a lease is to a client, see leases.Lease."""

    def want(self, seats: int) -> None: ...

    def allowance(self, seats: int) -> int: ...

    def flying(self, requests: int) -> None: ...

    def others_flying(self) -> int: ...

    def alone(self) -> AbstractContextManager[None]: ...


@dataclass
class Client:
    """Answers tasks against one endpoint until all are done, failed, or `stop` is set.

    `reconnect` brings the endpoint back after its server died; `crashed` is told then which tasks were in flight, and
    counts them where the server died by itself; `last_words` says why. `give_up` ends a server that makes no progress.
    `done` takes each completion, `failed` each failure; these and `crashed` are called in the event loop, and must be
    quick.
    """

    endpoint: Endpoint
    sampling: Sampling
    limits: Limits
    seats: Seats
    reconnect: Callable[[Endpoint], Awaitable[Endpoint]]
    give_up: Callable[[Endpoint, str], Awaitable[None]]
    last_words: Callable[[], str]
    crashed: Callable[[Endpoint, list[Task]], None]
    done: Callable[[Completion], None]
    failed: Callable[[Failure], None]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    drain: float = 60.0
    answered: int = 0
    _in_flight: dict[str, "_Request"] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    _suspects: list[Task] = field(default_factory=list)
    _reconnecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, tasks: list[Task]) -> None:
        """Make every answer. Returns when nothing is left, or stopped: then tasks may be unanswered."""
        self._suspects = [task for task in tasks if task.crashes >= SUSPECT_CRASHES]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        connector, cookies = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=cookies) as session:
            watchdog = asyncio.create_task(self._watchdog(session).watch())
            try:
                await self._answer_all(session, deque(task for task in tasks if task.crashes < SUSPECT_CRASHES))
                if self._suspects and not self.stop.is_set():
                    await self._clear_suspects(session)
            finally:
                watchdog.cancel()
                await asyncio.gather(watchdog, return_exceptions=True)

    def _watchdog(self, session: aiohttp.ClientSession) -> Watchdog:
        return Watchdog(
            session=session,
            patience=self.limits.stall,
            endpoint=lambda: self.endpoint,
            in_flight=lambda: len(self._at(self.endpoint)),
            answered=lambda: self.answered,
            give_up=lambda endpoint, reason: self._give_up(session, endpoint, reason),
        )

    def _at(self, endpoint: Endpoint) -> dict[str, _Request]:
        """The requests at a server."""
        return {rid: request for rid, request in self._in_flight.items() if request.endpoint is endpoint}

    async def _give_up(self, session: aiohttp.ClientSession, endpoint: Endpoint, reason: str) -> None:
        """End a server of ours, which loses its requests; of another, stop waiting for them."""
        requests = self._at(endpoint)
        self._given_up.update(requests)
        await abort(session, endpoint, list(requests), ABORT_SECONDS)
        if endpoint.folder is not None:
            await self.give_up(endpoint, reason)
            return
        for rid, request in self._at(endpoint).items():
            if rid in requests and request.waiting is not None:
                request.waiting.cancel()

    async def _answer_all(self, session: aiohttp.ClientSession, pending: deque[Task]) -> None:
        """Send as seats allow until nothing is left; what became a suspect meanwhile waits in `_suspects`."""
        flying: set[asyncio.Task[Task | None]] = set()
        ended: deque[asyncio.Task[Task | None]] = deque()
        landed = asyncio.Event()

        def land(item: asyncio.Task[Task | None]) -> None:
            """By callback: asyncio.wait would look at all that fly each time that one lands."""
            ended.append(item)
            landed.set()

        try:
            while (pending and not self.stop.is_set()) or flying:
                if self.stop.is_set():
                    await self._drain(flying)
                    return
                granted = self.endpoint.granted.seats
                self.seats.want(min(granted, len(pending) + len(flying)))
                room = self.seats.allowance(granted) - len(flying)
                while pending and room > 0:
                    item = asyncio.create_task(self._answer_one(session, pending.popleft()))
                    item.add_done_callback(land)
                    flying.add(item)
                    self.seats.flying(len(flying))
                    room -= 1
                    if pending and room > 0:
                        await asyncio.sleep(STAGGER_SECONDS)
                if not flying:
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await landed.wait()
                landed.clear()
                while ended:
                    flying.remove(item := ended.popleft())
                    again = item.result()
                    if again is not None:
                        pending.appendleft(again)
                self.seats.flying(len(flying))
        finally:
            for item in flying:
                item.cancel()
            await asyncio.gather(*flying, return_exceptions=True)
            self.seats.flying(0)

    async def _drain(self, flying: set[asyncio.Task[Task | None]]) -> None:
        """Let what is in flight finish, for `drain` seconds at most."""
        if flying:
            ended, _ = await asyncio.wait(flying, timeout=self.drain)
            for item in ended:
                item.result()

    async def _clear_suspects(self, session: aiohttp.ClientSession) -> None:
        """Try what was in flight at several deaths of its server with nothing else there, in ever smaller batches.

        A prompt with which alone in flight a server dies, and a fresh one again, is the culprit: it fails as `poison`.
        """
        self.seats.want(self.endpoint.granted.seats)
        with ExitStack() as held:
            while not self.stop.is_set():
                try:
                    held.enter_context(self.seats.alone())
                    break
                except files.Locked:
                    await asyncio.sleep(POLL_SECONDS)
            while self.seats.others_flying() and not self.stop.is_set():
                await asyncio.sleep(POLL_SECONDS)
            size = max(1, self.endpoint.granted.seats)
            batches = [self._suspects[start : start + size] for start in range(0, len(self._suspects), size)]
            while batches and not self.stop.is_set():
                batch, self._suspects = batches.pop(), []
                await self._answer_all(session, deque(batch))
                left, self._suspects = self._suspects, []  # with these in flight the server died
                if left == batch and len(batch) == 1:
                    left[0].crashes_alone += 1
                    if left[0].crashes_alone < CRASHES_ALONE:
                        batches.append(left)
                    else:
                        self._fail(left[0], self._poison(left[0]), final=True)
                elif left:
                    half = -(-len(left) // 2)
                    batches += [part for part in (left[half:], left[:half]) if part]

    def _poison(self, task: Task) -> Fault:
        return Fault(
            "poison",
            f"its server died {task.crashes} times with it in flight, at last with nothing else there: "
            f"{self.last_words()}",
        )

    async def _answer_one(self, session: aiohttp.ClientSession, task: Task) -> Task | None:
        """Make a task's turns until it is answered or failed (None), or give it back to be tried in its turn."""
        if task.conversation is None:
            task.conversation = Conversation(task.prompt, task.sample, self.sampling)
        while task.conversation.ended is None:
            failed, again = await self._make_turn(session, task, task.conversation)
            if failed:
                return again
        self._finish(task, task.conversation)
        return None

    def _finish(self, task: Task, conversation: Conversation) -> None:
        self.done(conversation.completion())
        task.conversation = None  # its tokens are in the journal now; tasks are held until the chunk's end

    async def _make_turn(
        self, session: aiohttp.ClientSession, task: Task, conversation: Conversation
    ) -> tuple[bool, Task | None]:
        """One request; whether it failed, and then the task if it is to be tried again."""
        endpoint, rid = self.endpoint, uuid4().hex
        started = time.monotonic()
        self._in_flight[rid] = _Request(task, endpoint, asyncio.current_task())
        try:
            body = conversation.request(endpoint.granted.served_name, rid)
            task.attempts += 1
            reply = await self._post(session, endpoint, body)
            conversation.take(reply, rid, _answerer(endpoint), task.attempts, time.monotonic() - started)
        except Fault as fault:
            if fault.kind == "aborted" and rid in self._given_up:
                fault = Fault("no_progress", "the server made no progress")
            return True, await self._meet(session, task, endpoint, fault, rid)
        except asyncio.CancelledError:
            if rid not in self._given_up:
                raise
            silence = Fault("no_progress", "the server made no progress")
            return True, await self._meet(session, task, endpoint, silence, rid)
        finally:
            self._in_flight.pop(rid, None)
            self._given_up.discard(rid)
        self.answered += 1
        task.attempts, task.answered_before = 0, None
        return False, None

    async def _meet(
        self, session: aiohttp.ClientSession, task: Task, endpoint: Endpoint, fault: Fault, rid: str
    ) -> Task | None:
        """Do what the fault's policy says."""
        if task.answered_before is None:
            task.answered_before = self.answered
        if not fault.policy.charged:
            task.attempts -= 1
        if fault.kind == "server_gone":
            async with self._reconnecting:
                if self.endpoint is endpoint:  # the first to notice brings it back, for all
                    lost = [request.task for request in self._at(endpoint).values()]
                    try:
                        self.endpoint = await self.reconnect(endpoint)
                    finally:
                        self.crashed(endpoint, lost)
            if task.crashes < SUSPECT_CRASHES:
                return task
            self._suspects.append(task)
            return None
        self._in_flight.pop(rid, None)  # nothing of it is at the server while it waits
        if task.attempts < fault.policy.tries:
            if self.stop.is_set():
                return None  # unanswered, not failed: the next run tries it again
            await asyncio.sleep(wait_seconds(task.attempts, self.limits.retry_wait))
            return task
        final = fault.policy.final
        if fault.kind == "server_error":  # which is the prompt's own, if others are answered
            final = self.answered > task.answered_before or await self._answers_another(session, endpoint)
        self._fail(task, fault, final)
        return None

    async def _answers_another(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> bool:
        """Whether the server answers a plain question, where no other prompt was there to tell."""
        asked = {"role": "user", "content": "Hello"}
        body = {"model": endpoint.granted.served_name, "messages": [asked], "rid": uuid4().hex, "max_tokens": 1}
        try:
            async with asyncio.timeout(self.limits.stall):
                await self._post(session, endpoint, body)
        except (Fault, TimeoutError):
            return False
        return True

    def _fail(self, task: Task, fault: Fault, final: bool) -> None:
        """End a task. Turns that it has are kept, unless the next run asks for them again."""
        conversation = task.conversation
        if final and conversation is not None and conversation.stop(fault):
            self._finish(task, conversation)
            return
        failure: Failure = {
            "prompt_id": task.prompt["prompt_id"],
            "sample": task.sample,
            "source": task.prompt["source"],
            "class": fault.kind,
            "reason": fault.reason,
            "final": final,
            "attempts": task.attempts,
        }
        if final and conversation is not None and conversation.turns:
            failure |= {"messages": conversation.answered(), "turns": conversation.turns}
        self.failed(failure)
        task.conversation = None

    async def _post(self, session: aiohttp.ClientSession, endpoint: Endpoint, body: object) -> object:
        headers = {"Content-Type": "application/json", **endpoint.headers()}
        url = f"{endpoint.url}/v1/chat/completions"
        try:
            async with session.post(url, data=orjson.dumps(body), headers=headers, allow_redirects=False) as response:
                raw = await response.read()
                if response.status != 200:
                    raise from_status(response.status, raw)
        except (aiohttp.ClientError, OSError) as error:
            if await self._is_dead(endpoint):
                raise Fault("server_gone", f"the server died: {error}") from error
            kind = "unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "server_error"
            raise Fault(kind, f"{type(error).__name__}: {error}") from error
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Fault("bad_reply", f"the reply is not JSON: {raw[:80]!r}") from error

    async def _is_dead(self, endpoint: Endpoint) -> bool:
        """Whether the server behind a broken connection died; its supervisor sees that a moment later."""
        deadline = time.monotonic() + (DEATH_SECONDS if endpoint.folder is not None else 0)
        while await asyncio.to_thread(endpoint.alive):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


def _answerer(endpoint: Endpoint) -> Answerer:
    honours = bool(endpoint.granted.content.get("enable_deterministic_inference"))
    decode = None if endpoint.tokenizer is None else decoder(endpoint.tokenizer)
    return Answerer(endpoint.name, endpoint.vocabulary, endpoint.tags, decode, honours)


def wait_seconds(attempt: int, first: float) -> float:
    """Seconds before the next try: doubling from `first` to 30 times that, times a random 0.5 to 1.

    So tries of many don't come together.
    """
    return min(LONGEST_WAIT, 2.0 ** (attempt - 1)) * first * random.uniform(0.5, 1.0)

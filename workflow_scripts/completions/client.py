"""One job's HTTP client: as many requests in flight as its lease allows, faults met by their policy."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

import aiohttp
import orjson

from workflow_scripts.completions.conversation import complete, request_body
from workflow_scripts.completions.faults import Fault, from_status
from workflow_scripts.config import Sampling
from workflow_scripts.records import Completion, Failure, Prompt
from workflow_scripts.serving.endpoints import Endpoint

# A new request every 2 ms at most, so that a thousand of them don't knock in the same instant.
STAGGER_SECONDS = 0.002
POLL_SECONDS = 0.1


@dataclass
class Task:
    """One answer to be made: a prompt, the number of the sample, and what it has cost so far."""

    prompt: Prompt
    sample: int
    attempts: int = 0
    answered_before: int | None = None  # answers to others when its first try failed


@dataclass
class Client:
    """Answers tasks against one endpoint until all are done, failed, or `stop` is set.

    `allowance` is asked how many requests may be in flight now; `want` is told how many this job could use.
    `reconnect` brings the endpoint back after its server died. `done` takes each completion, `failed` each
    failure; both are called in the event loop, and must be quick.
    """

    endpoint: Endpoint
    sampling: Sampling
    allowance: Callable[[], int]
    want: Callable[[int], None]
    reconnect: Callable[[Endpoint], Awaitable[Endpoint]]
    done: Callable[[Completion], None]
    failed: Callable[[Failure], None]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    drain: float = 60.0
    answered: int = 0
    _reconnecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, tasks: list[Task]) -> None:
        """Make every answer. Returns when nothing is left, or stopped: then tasks may be unanswered."""
        pending = deque(tasks)
        flying: set[asyncio.Task[Task | None]] = set()
        ended: deque[asyncio.Task[Task | None]] = deque()
        landed = asyncio.Event()

        def land(item: asyncio.Task[Task | None]) -> None:
            """By callback: asyncio.wait would look at all that fly each time that one lands."""
            ended.append(item)
            landed.set()

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            try:
                while (pending and not self.stop.is_set()) or flying:
                    if self.stop.is_set():
                        await self._drain(flying)
                        return
                    self.want(len(pending) + len(flying))
                    room = self.allowance() - len(flying)
                    while pending and room > 0:
                        item = asyncio.create_task(self._answer_one(session, pending.popleft()))
                        item.add_done_callback(land)
                        flying.add(item)
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
            finally:
                for item in flying:
                    item.cancel()
                await asyncio.gather(*flying, return_exceptions=True)

    async def _drain(self, flying: set[asyncio.Task[Task | None]]) -> None:
        """Let what is in flight finish, for `drain` seconds at most."""
        if flying:
            ended, _ = await asyncio.wait(flying, timeout=self.drain)
            for item in ended:
                item.result()

    async def _answer_one(self, session: aiohttp.ClientSession, task: Task) -> Task | None:
        """Try a task until it is answered or failed (None), or give it back to be tried in its turn."""
        endpoint = self.endpoint
        started = time.monotonic()
        try:
            body = request_body(task.prompt, task.sample, self.sampling, endpoint.granted.served_name, uuid4().hex)
            task.attempts += 1
            reply = await self._post(session, endpoint, body)
            completion = complete(
                task.prompt,
                task.sample,
                reply,
                body,
                server=endpoint.name,
                attempts=task.attempts,
                seconds=time.monotonic() - started,
            )
        except Fault as fault:
            return await self._meet(task, endpoint, fault)
        self.answered += 1
        self.done(completion)
        return None

    async def _meet(self, task: Task, endpoint: Endpoint, fault: Fault) -> Task | None:
        """Do what the fault's policy says."""
        if task.answered_before is None:
            task.answered_before = self.answered
        if not fault.policy.charged:
            task.attempts -= 1
            async with self._reconnecting:
                if self.endpoint is endpoint:  # the first to notice brings it back, for all
                    self.endpoint = await self.reconnect(endpoint)
            return task
        if task.attempts < fault.policy.tries:
            if self.stop.is_set():
                return None  # unanswered, not failed: the next run tries it again
            await asyncio.sleep(backoff_seconds(task.attempts))
            return task
        others_were_answered = self.answered > task.answered_before
        self.failed(
            {
                "prompt_id": task.prompt["prompt_id"],
                "sample": task.sample,
                "source": task.prompt["source"],
                "class": fault.kind,
                "reason": fault.reason,
                "final": fault.policy.final or (fault.kind == "server_error" and others_were_answered),
                "attempts": task.attempts,
            }
        )
        return None

    async def _post(self, session: aiohttp.ClientSession, endpoint: Endpoint, body: object) -> object:
        headers = {"Content-Type": "application/json", **endpoint.headers()}
        url = f"{endpoint.url}/v1/chat/completions"
        try:
            async with session.post(url, data=orjson.dumps(body), headers=headers, allow_redirects=False) as response:
                raw = await response.read()
                if response.status != 200:
                    raise from_status(response.status, raw)
        except (aiohttp.ClientError, OSError) as error:
            if not await asyncio.to_thread(endpoint.alive):
                raise Fault("server_gone", f"the server died: {error}") from error
            kind = "unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "server_error"
            raise Fault(kind, f"{type(error).__name__}: {error}") from error
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Fault("bad_reply", f"the reply is not JSON: {raw[:80]!r}") from error


def backoff_seconds(attempt: int) -> float:
    """Seconds before the next try: doubling from 1 to 30, times a random 0.5 to 1, so that tries don't pile up."""
    return min(30.0, 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)

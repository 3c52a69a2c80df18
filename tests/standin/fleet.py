"""A fleet of stand-ins in one process, each with a clock: it costs little CPU, and tells how full its seats were.

`python -m tests.standin.fleet --servers 8 --seats 64 --step 0.02 --mean 250` prints the servers' addresses as a JSON
list when they answer. Every server decodes as SGLang does, by continuous batching: a step gives each running request
one token, and takes `step` seconds when all seats are taken, half of it when next to none is. Nothing waits step by
step: the next end is computed, anew when a request joins or leaves.

How many tokens an answer has is decided by its prompt's text and the seed, and log-normal. GET /report on any server,
with `?until=T` up to that moment, tells of them all; times are of time.monotonic().
"""

import argparse
import asyncio
import bisect
import heapq
import itertools
import math
import random
import resource
import signal
import time
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson
from aiohttp import web

from tests.standin.server import Standin

WORDS = 1_000_000  # of the text that answers are cut from: beyond a compressor's window
VOCABULARY = 20_000  # of the model that the fleet serves
CAP = 3  # no answer is longer than so many times the mean

Item = TypeVar("Item")


@dataclass
class Batch(Generic[Item]):
    """One server's seats. Its times may be of any clock that only goes on, and are its own to `advance`.

    `step` is the seconds of a step with all seats taken. Requests beyond the seats wait in the order they came.
    """

    seats: int
    step: float
    now: float = 0.0
    busy: float = 0.0  # seat-seconds so far
    tokens: int = 0  # of requests that ended
    made: float = 0.0  # tokens, of all
    history: list[tuple[float, float, int]] = field(default_factory=list)  # at each change: time, busy, running
    _steps: float = 0.0  # done so far
    _running: list[tuple[float, int, int, Item]] = field(default_factory=list)  # (last step, order, tokens, item)
    _queue: list[tuple[int, Item]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def running(self) -> int:
        return len(self._running)

    def seconds_per_step(self) -> float:
        return self.step * (0.5 + 0.5 * self.running / self.seats)

    def join(self, now: float, tokens: int, item: Item) -> list[Item]:
        """A request for `tokens` tokens comes; what `advance` returns."""
        ended = self.advance(now)
        self._queue.append((tokens, item))
        self._seat()
        return ended

    def leave(self, now: float, item: Item) -> list[Item]:
        """A request is given up, if it is still here; what `advance` returns."""
        ended = self.advance(now)
        self._queue = [entry for entry in self._queue if entry[1] is not item]
        self._running = [entry for entry in self._running if entry[3] is not item]
        heapq.heapify(self._running)
        self._seat()
        return ended

    def next_end(self) -> float:
        """When the next request ends if none joins or leaves; infinity if none runs."""
        if not self._running:
            return math.inf
        return self.now + (self._running[0][0] - self._steps) * self.seconds_per_step()

    def advance(self, now: float) -> list[Item]:
        """Go on to `now`; the requests that ended until then, each at its own time."""
        ended = []
        while (end := self.next_end()) <= now:
            self._pass(end)
            self._steps, _, tokens, item = heapq.heappop(self._running)
            self.tokens += tokens
            ended.append(item)
            self._seat()
        self._pass(now)
        return ended

    def _pass(self, now: float) -> None:
        passed = max(0.0, now - self.now)
        self.busy += passed * self.running
        steps = passed / self.seconds_per_step()
        self._steps += steps
        self.made += steps * self.running
        self.now += passed

    def _seat(self) -> None:
        """Let those who wait take free seats, and note the change."""
        while self._queue and self.running < self.seats:
            tokens, item = self._queue.pop(0)
            heapq.heappush(self._running, (self._steps + tokens, next(self._order), tokens, item))
        self.history.append((self.now, self.busy, self.running))

    def busy_until(self, moment: float) -> float:
        """Seat-seconds up to `moment`, which is not after the last advance."""
        at = bisect.bisect_right(self.history, moment, key=lambda change: change[0]) - 1
        if at < 0:
            return 0.0
        time_, busy, running = self.history[at]
        return busy + (moment - time_) * running


@dataclass(frozen=True)
class Lengths:
    """Tokens of answers: log-normal with this mean, and no longer than three times the mean if `capped`."""

    mean: float
    sigma: float = 1.0
    capped: bool = True
    seed: int = 0

    def tokens(self, text: str) -> int:
        """Of the answer to a prompt, the same every time."""
        chance = random.Random(f"{self.seed} {text}")
        tokens = chance.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return max(1, round(min(tokens, CAP * self.mean) if self.capped else tokens))


class Text:
    """Four bytes and one token id of five digits for each word, so that an answer is a slice of bytes."""

    def __init__(self) -> None:
        chance = random.Random(0)
        words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=3)) for _ in range(10_000)]
        picked = chance.choices(range(10_000), [1 / (rank + 10) for rank in range(10_000)], k=WORDS)
        self._text = " ".join(words[number] for number in picked).encode()
        self._ids = ",".join(str(10_000 + number) for number in picked).encode()

    def reply(self, rid: str, prompt_tokens: int, tokens: int) -> bytes:
        """The JSON of a chat completion."""
        start = random.randrange(WORDS - max(tokens, prompt_tokens))
        return (
            b'{"id":%s,"object":"chat.completion","created":0,"model":"standin","choices":[{"index":0,"message":'
            b'{"role":"assistant","content":"%s","reasoning_content":null},"finish_reason":"stop",'
            b'"prompt_token_ids":[%s],"response_token_ids":[%s]}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}'
        ) % (
            orjson.dumps(rid),
            self._text[4 * start : 4 * (start + tokens) - 1],
            self._ids[: 6 * prompt_tokens - 1],
            self._ids[6 * start : 6 * (start + tokens) - 1],
            prompt_tokens,
            tokens,
        )


class Server(Standin):
    """A stand-in whose answers take the time that a batch takes."""

    def __init__(self, batch: "Batch[asyncio.Future[None]]", lengths: Lengths, text: Text) -> None:
        super().__init__(batch.seats, 1 << 20, None)
        self.batch = batch
        self.lengths = lengths
        self.text = text
        self.first: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def _chat(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        asked = body["messages"][-1]["content"]
        tokens = self.lengths.tokens(asked)
        answered = asyncio.get_running_loop().create_future()
        now = time.monotonic()
        self.first = self.first or now
        self.seen += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            self._plan(self.batch.join(now, tokens, answered))
            await answered
        finally:
            self.in_flight -= 1
            if not answered.done() or answered.cancelled():
                self._plan(self.batch.leave(time.monotonic(), answered))
        return web.Response(
            body=self.text.reply(body["rid"], max(1, len(asked) // 4), tokens), content_type="application/json"
        )

    def _plan(self, ended: "list[asyncio.Future[None]]") -> None:
        """Answer those, and wake up when the next one ends."""
        for answered in ended:
            if not answered.done():
                answered.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        end = self.batch.next_end()
        if end < math.inf:
            self._timer = asyncio.get_running_loop().call_at(end, self._wake)

    def _wake(self) -> None:
        self._plan(self.batch.advance(max(time.monotonic(), self.batch.next_end())))


class Fleet:
    """All servers, and their report."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    async def start(self) -> list[str]:
        """Listen on free ports; the addresses."""
        urls = []
        for server in self.servers:
            app = server.app()
            app.router.add_get("/report", self._report)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return urls

    async def _report(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        for server in self.servers:
            server._plan(server.batch.advance(now))
        until = float(request.query.get("until", now))
        reports = [
            {
                "requests": server.seen,
                "most_in_flight": server.most_in_flight,
                "tokens": server.batch.tokens,
                "first": server.first,
                "busy": server.batch.busy_until(until),
                "last": max((change[0] for change in server.batch.history), default=None),
            }
            for server in self.servers
        ]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        whole: dict[str, Any] = {"servers": reports, "cpu": usage.ru_utime + usage.ru_stime}
        return web.json_response(whole)


def slowed(text: str) -> tuple[int, float]:
    """`3:1.5`: server 3 takes 1.5 times as long."""
    number, _, factor = text.partition(":")
    return int(number), float(factor)


async def serve(args: argparse.Namespace) -> None:
    slow = dict(args.slow)
    lengths = Lengths(args.mean, args.sigma, not args.uncapped, args.seed)
    text = Text()
    batches: list[Batch[asyncio.Future[None]]] = [
        Batch(args.seats, args.step * slow.get(number, 1.0), now=time.monotonic()) for number in range(args.servers)
    ]
    fleet = Fleet([Server(batch, lengths, text) for batch in batches])
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(orjson.dumps(await fleet.start()).decode(), flush=True)
    await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A fleet of stand-ins for SGLang.")
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--seats", type=int, default=64, help="of each server")
    parser.add_argument("--step", type=float, required=True, help="seconds of a step with all seats taken")
    parser.add_argument("--mean", type=float, required=True, help="tokens of an answer, before the cap")
    parser.add_argument("--sigma", type=float, default=1.0, help="of their logarithm; 0: all are alike")
    parser.add_argument("--uncapped", action="store_true", help="answers may be longer than three times the mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=slowed, action="append", default=[], metavar="K:FACTOR")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve(args))


if __name__ == "__main__":
    main()

"""A stand-in for SGLang whose flags decide how fast it is, launched as SGLang is. It decodes as the fleet's do.

    --max-running-requests N          its seats; the more, the faster, up to `knee` of them
    --schedule-conservativeness F     it is F times as fast; below 0.5 it retracts requests, too
    --page-size N                     above 1, its greedy answers part from others' at a near-tie
    --attention-backend triton        its greedy answers are others
    --mem-fraction-static F           above 0.95 it has no memory to start with
    --chunked-prefill-size 1          it dies for want of memory after a few answers
    --chunked-prefill-size 2          it hangs after a few answers
    --max-prefill-tokens 1            it refuses half the prompts
    --max-prefill-tokens 2            it refuses all of them

STANDIN_TUNE is a JSON object: `step` (seconds of a step with all seats taken), `mean` (tokens of an answer), `knee`;
`speeds` (of servers by their numbers, as a share) and `broken` (numbers of servers that have no memory to start with).
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tests.standin.fleet import Batch, Lengths, Server, Text
from tests.standin.server import END, FLAGS, answer_to, completion, likeliest, start_scheduler, tokens

PARTING = 5  # the token of an answer where another is nearly as likely
LAST_WORDS = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
ANSWERS_TO_DEATH = 30


class Tunable(Server):
    """The fleet's server, with greedy answers and counters."""

    def __init__(self, batch: "Batch[asyncio.Future[None]]", lengths: Lengths, flags: argparse.Namespace) -> None:
        super().__init__(batch, lengths, Text())
        self.flags = flags

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _metrics(self, _: web.Request) -> web.Response:
        self._plan(self.batch.advance(time.monotonic()))
        retracted = self.seen if self.flags.schedule_conservativeness < 0.5 else 0
        lines = [
            "# TYPE sglang:num_running_reqs gauge",
            f'sglang:num_running_reqs{{model_name="m"}} {self.batch.running:.1f}',
            f'sglang:realtime_tokens_total{{model_name="m",mode="decode"}} {self.batch.made}',
            'sglang:realtime_tokens_total{model_name="m",mode="prefill_compute"} 1000000.0',
            f'sglang:num_retracted_requests_total{{model_name="m"}} {retracted:.1f}',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _chat(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        if self.flags.chunked_prefill_size == 2 and self.seen >= ANSWERS_TO_DEATH:
            await asyncio.Event().wait()
        if body.get("logprobs"):
            return self._greedy(body)
        if self.flags.chunked_prefill_size == 1 and self.seen >= ANSWERS_TO_DEATH:
            print(LAST_WORDS, flush=True)
            os._exit(1)
        half = len(body["messages"][-1]["content"]) > 50
        if self.flags.max_prefill_tokens == 2 or (self.flags.max_prefill_tokens == 1 and half):
            return web.json_response({"object": "error", "message": "the template refuses it"}, status=400)
        return await super()._chat(request)

    def _greedy(self, body: dict[str, Any]) -> web.Response:
        said = answer_to(body["messages"])
        if self.flags.attention_backend == "triton":
            said = said.upper()
        ids = [*tokens(said), END][: body["max_tokens"]]
        told = [likeliest(token) for token in ids]
        nearly = (ids[PARTING], tokens("~")[0])
        first, second = reversed(nearly) if self.flags.page_size > 1 else nearly
        ids[PARTING] = first
        told[PARTING] = likeliest(first, {bytes([second - 3]): -0.8}, logprob=-0.7)
        finish = "stop" if ids[-1] == END else "length"
        return completion(body["model"], body["rid"], [3], ids, finish, logprobs=told)


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for SGLang with a speed.")
    parser.add_argument("--port", type=int)
    parser.add_argument("--list-flags", action="store_true")
    parser.add_argument("--max-running-requests", type=int, default=16)
    parser.add_argument("--schedule-conservativeness", type=float, default=1.0)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--attention-backend", default="")
    parser.add_argument("--mem-fraction-static", type=float, default=0.8)
    parser.add_argument("--chunked-prefill-size", type=int, default=2048)
    parser.add_argument("--max-prefill-tokens", type=int, default=16384)
    flags, _ = parser.parse_known_args()
    if flags.list_flags:
        print(FLAGS.read_text())
        return
    asked, number = json.loads(os.environ["STANDIN_TUNE"]), Path.cwd().name
    if flags.mem_fraction_static > 0.95 or number in asked.get("broken", []):
        raise SystemExit(LAST_WORDS)
    seats = flags.max_running_requests
    step = asked["step"] * max(1.0, seats / asked["knee"]) / flags.schedule_conservativeness
    step /= asked.get("speeds", {}).get(number, 1.0)
    batch: Batch[asyncio.Future[None]] = Batch(seats, step, now=time.monotonic())
    server = Tunable(batch, Lengths(asked["mean"]), flags)
    key_file = os.environ.get("DRAFTMILL_SERVER_KEY_FILE")
    server.key = Path(key_file).read_text().strip() if key_file else None
    start_scheduler()
    web.run_app(server.app(), host="127.0.0.1", port=flags.port, print=None, shutdown_timeout=0.5)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

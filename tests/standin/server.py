"""An aiohttp server with the part of SGLang's API that Draftmill uses.

Answers are a function of the last message, so tests know them. A user who has tools and says `CALL name {...}` is
answered by these calls, one for each such line. Token ids are the UTF-8 bytes plus 3, and 2 as end
token. Faults are switched on by STANDIN_FAULTS, a JSON object, at the start, and by POST /faults while it runs:

    status          every request answers so              next_statuses   a list, one request each
    garbage, blank, no_choices, not_json, wrong_json, foreign_ids, abort, wrong_id      that many replies each
    delay           seconds a reply takes                 never_up        the process exits at once
    die_on          words: the process exits when a prompt holds one of them
    die_after       requests that are answered; with the next one the process exits
    away            seconds after such an exit in which it does not come up
    load            seconds before it listens             granted         seats at most, whatever was asked for
    port_taken      the first start finds its port taken
    loud            lines of 200 KB in its log, which begins with a gigabyte of nothing
    hold_after      requests that are answered; later ones wait for ever
    hold_on         a word: prompts that hold it wait until they are aborted
    refuse_on       words: prompts that hold one of them get a 400
    fail_on         words: prompts that hold one of them get a 500
    misquote_on     words: replies to prompts that hold one of them have another text than their ids
    garbage_on      a word: prompts that hold it get half a reply
    slow_on         {word: seconds that a reply takes to prompts that hold it}
    say, said_on    a text that is said instead, to prompts that hold the word

Where `logprobs` are asked, all its tokens are much likelier than others.
STANDIN_FAULTS_K stands in for STANDIN_FAULTS where the server's folder is named K.
STANDIN_LOG names a file that gets a JSON line for each request asked and answered, over all starts of all servers.
Like SGLang it has a scheduler, a child process, and goes down when that dies; the scheduler alone would outlive it.
Started by `python -m tests.standin.server --port P` and any other of SGLang's flags, of which it heeds two.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

FLAGS = Path(__file__).parents[1] / "data" / "sglang_flags.json"  # as SGLang 0.5.23 lists them
END = 2
AWAY, TAKEN = Path("away"), Path("taken")  # in the server's folder: until when, and whether it was
FOREIGN_ID = 259  # the first that is not in the vocabulary


def answer_to(messages: list[dict[str, Any]]) -> str:
    """What this model says."""
    return f"You said: {messages[-1]['content']}. " + "That is a fine question, and here is a longer answer to it."


def calls_to(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that this model calls, as it says them: {"name", "arguments"}."""
    last = body["messages"][-1]
    if not body.get("tools") or last["role"] != "user":
        return []
    lines = [line.split(" ", 2) for line in last["content"].splitlines() if line.startswith("CALL ")]
    return [{"name": name, "arguments": json.loads(arguments)} for _, name, arguments in lines]


def tokens(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()]


class Standin:
    """The server's state; `seen` counts the requests it was sent, `most_in_flight` how many at once."""

    def __init__(
        self, seats: int, context: int, key: str | None, faults: dict[str, Any] | None = None, log: str | None = None
    ) -> None:
        self.seats, self.context, self.key = seats, context, key
        self.faults: dict[str, Any] = dict(faults or {})
        self.log = log
        self.seen = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.running: dict[str, float] = {}  # requests that make tokens, since when
        self.tokens_made = 0.0
        self.aborted: dict[str, asyncio.Event] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._authorize], client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/faults", self._set_faults)
        app.router.add_get("/seen", self._seen)
        return app

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key and request.path != "/health" and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)  # type: ignore[no-any-return]

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "version": "0.5.23",
                "model_path": "standin",
                "dtype": "bfloat16",
                "quantization": None,
                "kv_cache_dtype": "auto",
                "context_length": self.context,
                "max_total_num_tokens": 32768,
                "max_req_input_len": self.context - 6,
                "dp_size": 1,
                "api_key": self.key,
                "internal_states": [
                    {
                        "effective_max_running_requests_per_dp": self.seats,
                        "memory_usage": {"token_capacity": 32768},
                    }
                ],
            }
        )

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "standin", "max_model_len": self.context}]})

    async def _loads(self, _: web.Request) -> web.Response:
        """Tokens grow with the time that requests are at work; a request that waits makes none."""
        made = sum(time.monotonic() - since for since in self.running.values())
        load = {
            "num_used_tokens": int(100 * made),
            "num_running_reqs": self.in_flight,
            "num_waiting_reqs": 0,
            "total_prefill_uncached_tokens": self.seen,
        }
        return web.json_response({"loads": [load]})

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        if rid in self.aborted:
            self.aborted[rid].set()
        return web.Response()

    async def _set_faults(self, request: web.Request) -> web.Response:
        self.faults.update(await request.json())
        return web.json_response(self.faults)

    async def _seen(self, _: web.Request) -> web.Response:
        return web.json_response({"seen": self.seen, "most_in_flight": self.most_in_flight})

    def _use(self, name: str) -> bool:
        """Whether a counted fault is on, one use fewer afterwards."""
        left = self.faults.get(name, 0)
        if left:
            self.faults[name] = left - 1
        return bool(left)

    def _note(self, what: str, body: dict[str, Any], **more: Any) -> None:
        if self.log:
            line = json.dumps({"what": what, "text": body["messages"][-1]["content"], **more})
            with Path(self.log).open("a") as file:  # one write: lines of several servers don't mix
                file.write(f"{line}\n")

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self._note("asked", body)
        self.aborted[body["rid"]] = asyncio.Event()
        try:
            reply = await self._reply(body)
            self._note("answered", body, status=reply.status)
            return reply
        finally:
            self.in_flight -= 1
            self.running.pop(body["rid"], None)
            del self.aborted[body["rid"]]

    async def _reply(self, body: dict[str, Any]) -> web.Response:
        text = body["messages"][-1]["content"]
        if any(word in text for word in self.faults.get("die_on", [])):
            os._exit(9)
        if self.faults.get("loud"):
            print("x" * 200_000, flush=True)
        if self.seen > self.faults.get("die_after", self.seen):
            AWAY.write_text(str(time.time() + self.faults.get("away", 0)))
            os._exit(9)
        if self.seen > self.faults.get("hold_after", self.seen):
            await asyncio.Event().wait()
        if self.faults.get("hold_on") and self.faults["hold_on"] in text:
            await self.aborted[body["rid"]].wait()
            return completion(body["model"], body["rid"], [3], [2], "abort")
        self.running[body["rid"]] = time.monotonic()
        if self.faults.get("delay"):
            await asyncio.sleep(self.faults["delay"])
        if any(word in text for word in self.faults.get("refuse_on", [])):
            return web.json_response({"object": "error", "message": "the template refuses it"}, status=400)
        for word, seconds in self.faults.get("slow_on", {}).items():
            if word in text:
                await asyncio.sleep(seconds)
        if any(word in text for word in self.faults.get("fail_on", [])):
            return web.json_response({"object": "error", "message": "Internal server error"}, status=500)
        if self.faults.get("garbage_on") and self.faults["garbage_on"] in text:
            return web.Response(text=BAD_BODIES["garbage"], content_type="application/json")
        statuses = self.faults.get("next_statuses") or []
        status = statuses.pop(0) if statuses else self.faults.get("status", 200)
        if status != 200:
            return web.json_response({"object": "error", "message": f"fault {status}"}, status=status)
        for name, raw in BAD_BODIES.items():
            if self._use(name):
                return web.Response(text=raw, content_type="application/json")
        prompt_ids = tokens("".join(f"<{item['role']}>{item['content']}" for item in body["messages"]))
        if len(prompt_ids) + body["max_tokens"] > self.context:
            message = (
                f"Requested token count exceeds the model's maximum context length of {self.context} tokens. "
                f"You requested a total of {len(prompt_ids) + body['max_tokens']} tokens"
            )
            return web.json_response({"object": "error", "message": message}, status=400)
        calls = calls_to(body)
        said = json.dumps(calls) if calls else answer_to(body["messages"])
        if self.faults.get("said_on", "") in text and "say" in self.faults:
            said = self.faults["say"]
        response_ids = [*tokens(said), END]
        wrong = next((name for name in ("foreign_ids", "abort", "wrong_id") if self._use(name)), None)
        if wrong == "foreign_ids":
            response_ids[0] = FOREIGN_ID
        finish = "stop"
        if len(response_ids) > body["max_tokens"]:
            response_ids, finish = response_ids[: body["max_tokens"]], "length"
        if wrong == "abort":
            finish = "abort"
        rid = "someone else's" if wrong == "wrong_id" else body["rid"]
        misquoted = any(word in text for word in self.faults.get("misquote_on", []))
        if calls and finish == "stop":
            finish = "tool_calls"
        told = [likeliest(token) for token in response_ids] if body.get("logprobs") else None
        return completion(body["model"], rid, prompt_ids, response_ids, finish, calls, "?" if misquoted else "", told)


# What may stand where a reply should.
BAD_BODIES = {
    "garbage": '{"id": "half a rep',
    "blank": "",
    "no_choices": '{"id": "x", "choices": []}',
    "not_json": "<html>Bad Gateway</html>",
    "wrong_json": "[1, 2, 3]",
}


def completion(
    model: str,
    rid: str,
    prompt_ids: list[int],
    response_ids: list[int],
    finish: str,
    calls: list[dict[str, Any]] | None = None,
    misquote: str = "",
    logprobs: list[dict[str, Any]] | None = None,
) -> web.Response:
    """The reply of /v1/chat/completions with `return_token_ids`; with calls, the text is theirs."""
    said = "" if calls else bytes(token - 3 for token in response_ids if 3 <= token < 259).decode(errors="replace")
    read = [
        {
            "id": f"call_{uuid4().hex[:24]}",
            "index": index,
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for index, call in enumerate(calls or ())
    ]
    return web.json_response(
        {
            "id": rid,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": misquote + said,
                        "reasoning_content": None,
                        "tool_calls": read or None,
                    },
                    "finish_reason": finish,
                    "logprobs": None if logprobs is None else {"content": logprobs},
                    "prompt_token_ids": prompt_ids,
                    "response_token_ids": response_ids,
                }
            ],
            "usage": {"prompt_tokens": len(prompt_ids), "completion_tokens": len(response_ids)},
        }
    )


def likeliest(token: int, others: dict[bytes, float] | None = None, logprob: float = -0.1) -> dict[str, Any]:
    """A token as `logprobs` tells of it, with the log-probabilities of others by their bytes."""
    text = bytes([token - 3]) if token >= 3 else b"<end>"
    tops = {text: logprob, **(others if others is not None else {b"\0": -5.0})}
    return {
        "token": text.decode(errors="replace"),
        "bytes": list(text),
        "logprob": logprob,
        "top_logprobs": [
            {"token": other.decode(errors="replace"), "bytes": list(other), "logprob": value}
            for other, value in tops.items()
        ],
    }


def start_scheduler() -> int:
    """Fork the scheduler and return its pid; from now on the death of it is ours."""
    pid = os.fork()
    while pid == 0:
        signal.pause()
    signal.signal(signal.SIGCHLD, lambda *_: os._exit(1))
    return pid


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for SGLang.")
    parser.add_argument("--port", type=int)
    parser.add_argument("--list-flags", action="store_true")
    parser.add_argument("--max-running-requests", type=int, default=16)
    parser.add_argument("--context-length", type=int, default=4096)
    args, _ = parser.parse_known_args()
    if args.list_flags:
        print(FLAGS.read_text())
        return
    key_file = os.environ.get("DRAFTMILL_SERVER_KEY_FILE")
    key = Path(key_file).read_text().strip() if key_file else None
    own = f"STANDIN_FAULTS_{Path.cwd().name}"
    faults = json.loads(os.environ.get(own) or os.environ.get("STANDIN_FAULTS", "{}"))
    if faults.get("never_up"):
        raise SystemExit("RuntimeError: no room for this server here")
    if AWAY.exists() and time.time() < float(AWAY.read_text()):
        raise SystemExit("RuntimeError: the driver is not back yet")
    if faults.get("loud"):
        os.truncate(sys.stdout.fileno(), 1 << 30)
    if faults.get("port_taken") and not TAKEN.exists():
        TAKEN.touch()
        socket.create_server(("127.0.0.1", args.port)).detach()  # open until the process ends
    time.sleep(faults.get("load", 0))
    seats = min(args.max_running_requests, faults.get("granted", args.max_running_requests))
    standin = Standin(seats, args.context_length, key, faults, os.environ.get("STANDIN_LOG"))
    scheduler = start_scheduler()
    web.run_app(standin.app(), host="127.0.0.1", port=args.port, print=None, shutdown_timeout=0.5)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.kill(scheduler, signal.SIGKILL)


if __name__ == "__main__":
    main()

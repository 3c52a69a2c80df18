"""What can go wrong with a request, classed once, and what is done about each class."""

from dataclasses import dataclass

import orjson


@dataclass(frozen=True)
class Policy:
    """`tries` requests at most; then the prompt fails, for good (`final`) or until the next run (open).

    A fault that is not `charged` was no fault of the prompt: it costs none of its tries.
    """

    tries: int
    final: bool
    charged: bool = True


POLICIES = {
    # The prompt can't be answered by this server: the same request would fail again.
    "too_long": Policy(tries=1, final=True),
    "refused": Policy(tries=1, final=True),
    # Half a reply, a reply that is no completion, or one to another request.
    "bad_reply": Policy(tries=8, final=True),
    # 5xx, 429, a full queue, a reset connection: the server's trouble. It is the prompt's only where the server
    # answered others meanwhile, or answers a plain question after it (see `Client._meet`).
    "server_error": Policy(tries=8, final=False),
    # SGLang answers 200 with finish_reason "abort" and a partial text.
    "aborted": Policy(tries=8, final=True),
    # The server died with the request in flight: it is started again.
    "server_gone": Policy(tries=8, final=False, charged=False),
    # Its servers died of it, see `Client._clear_suspects`.
    "poison": Policy(tries=1, final=True),
    # A server of servers.urls made no progress: it is not ours to start anew.
    "no_progress": Policy(tries=3, final=False),
    # A server of servers.urls does not answer: others may be looking after it.
    "unreachable": Policy(tries=8, final=False),
}


class Fault(Exception):
    """A request that brought no completion."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason

    @property
    def policy(self) -> Policy:
        return POLICIES[self.kind]


class ServerRefusesUs(Exception):
    """The server takes no request of ours (wrong key, wrong address): no prompt's fault, so the job ends."""


# SGLang 0.5: "The input (5000 tokens) is longer than the model's context length (4096 tokens)" and
# "Requested token count exceeds the model's maximum context length".
_TOO_LONG = ("longer than the model's context length", "exceeds the model's maximum context length")


def from_status(status: int, body: bytes) -> Fault:
    """The fault behind an HTTP status other than 200."""
    message = _message(body)
    if status in (401, 403, 404):
        raise ServerRefusesUs(f"HTTP {status}: {message}")
    if status in (400, 413, 422):
        return Fault("too_long" if any(words in message for words in _TOO_LONG) else "refused", message)
    if 300 <= status < 400:
        raise ServerRefusesUs(f"HTTP {status}: it sends us elsewhere")
    return Fault("server_error", f"HTTP {status}: {message}")


def _message(body: bytes) -> str:
    """The server's own words, short and on one line."""
    try:
        value = orjson.loads(body)
        error = value.get("error", value)
        text = error.get("message") if isinstance(error, dict) else error
    except (orjson.JSONDecodeError, AttributeError):
        text = None
    if not isinstance(text, str):
        text = body.decode("utf-8", "replace")
    return " ".join(text.split())[:500]

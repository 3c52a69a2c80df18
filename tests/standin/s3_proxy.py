"""A proxy before a real S3 server that spoils what passes: the network, and a store that is ill, as runs meet them.

It forwards the Host header as it comes, so that signatures stay right.
"""

import http.client
import http.server
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("slow down", "reset", "lost reply", "corrupt upload", "corrupt download", "truncate", "slow")
SLOW_BYTES = 2 << 20  # a second

SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@dataclass(frozen=True)
class Request:
    """A request that is about to be forwarded; `number` counts from 0."""

    number: int
    method: str
    path: str  # with the query

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber=" in self.path


class Proxy:
    """Where it listens, and what it does: `fault` gives the fault of a request, "away" breaks every connection."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.target = (parts.hostname or "", parts.port or 80)
        self.fault: Callable[[Request], str | None] = lambda request: None
        self.requests: list[Request] = []
        self.lock = threading.Lock()
        self.url = ""

    def arrived(self, method: str, path: str) -> str | None:
        with self.lock:
            request = Request(len(self.requests), method, path)
            self.requests.append(request)
            return self.fault(request)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def handle_all(self) -> None:
        fault = self.proxy.arrived(self.command, self.path)
        if fault in ("away", "reset"):
            self.reset()
        body = bytearray(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        if fault in ("slow down", "internal"):
            text = SLOW_DOWN if fault == "slow down" else SLOW_DOWN.replace(b"SlowDown", b"InternalError")
            self.answer(503 if fault == "slow down" else 500, [("Content-Type", "application/xml")], text)
            return
        if fault == "corrupt upload" and body:
            body[len(body) // 2] ^= 1
        if fault == "slow":
            time.sleep(min(len(body) / SLOW_BYTES, 2.0))
        upstream = http.client.HTTPConnection(*self.proxy.target, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    upstream.putheader(name, value)
            upstream.endheaders(bytes(body))
            reply = upstream.getresponse()
            content = bytearray(reply.read())
        finally:
            upstream.close()
        if fault == "lost reply":
            self.reset()
        kept = [
            (name, value)
            for name, value in reply.getheaders()
            if name.lower() not in ("transfer-encoding", "connection")
        ]
        if fault == "corrupt download" and self.command == "GET" and content and reply.status == 200:
            content[len(content) // 2] ^= 1
        self.answer(reply.status, kept, bytes(content), fault)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_all

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes, fault: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "truncate" and content:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.reset()
        elif fault == "slow":
            for at in range(0, len(content), SLOW_BYTES // 10):
                self.wfile.write(content[at : at + SLOW_BYTES // 10])
                time.sleep(0.1)
        else:
            self.wfile.write(content)

    def reset(self) -> None:
        """Close so that the other side gets a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise ConnectionResetError

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # without the orderly end that comes before it else


@contextmanager
def running_proxy(target: str) -> Iterator[Proxy]:
    """A proxy before the server at the URL `target`."""
    proxy = Proxy(target)
    handler = type("ProxyHandler", (Handler,), {"proxy": proxy})
    with Server(("127.0.0.1", 0), handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield proxy
        server.shutdown()

"""A hub on 127.0.0.1 with the part of the Hugging Face hub's API that datasets, and files of models, are read by.

Large files redirect to a second origin, another port, as on the real one. Runs in a thread: tests change it and read
its log as they go; other processes reach it by HF_ENDPOINT.
"""

import asyncio
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

LARGE = 1000  # bytes from which a file is large: LFS


@dataclass
class Fault:
    """What happens to the next `times` requests whose method and path match."""

    path: str
    times: int = 1
    method: str = ".*"
    status: int | None = None  # answered instead
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None  # bytes after which the connection breaks
    short: int | None = None  # bytes that the whole body has
    delay: float = 0.0  # seconds between blocks of the body
    whole: bool = False  # ranges are not heeded
    garbage: bool = False  # as many bytes as promised, others


@dataclass
class Asked:
    """A request, and what became of it."""

    origin: str  # "hub", or "store" where large files are
    method: str
    path: str
    range: str | None
    authorized: bool
    status: int = 0
    sent: int = 0  # bytes of a file


class Refused(Exception):
    """An answer other than what was asked for; `code` says why, as the real hub does."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, code: str | None = None) -> None:
        self.status = status
        self.headers = dict(headers or {}) | ({"X-Error-Code": code, "X-Error-Message": code} if code else {})


FAULT, ASKED = web.RequestKey("fault", Fault), web.RequestKey("asked", Asked)


@dataclass
class Repository:
    """Commits by their hash, branches by name; `gate` and `private` are the tokens that open it."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gate: str | None = None
    private: str | None = None


class Hub:
    """The hub's state. `url` is its HF_ENDPOINT."""

    def __init__(self, hub_port: int, store_port: int) -> None:
        self.url = f"http://127.0.0.1:{hub_port}"
        self.store_port = store_port
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.log: list[Asked] = []
        self.cache_redirect = False  # small files are found by a relative 307, as the real hub may do

    def commit(self, name: str, held: dict[str, bytes], branch: str = "main") -> str:
        """A new commit that holds these files; the branch moves to it."""
        repository = self.repositories.setdefault(name, Repository())
        commit = hashlib.sha1(repr(sorted(held.items())).encode()).hexdigest()
        repository.commits[commit] = held
        repository.branches[branch] = commit
        return commit

    def fault(self, path: str, **what: Any) -> None:
        self.faults.append(Fault(path, **what))

    def asked(self, path: str, method: str = "GET") -> list[Asked]:
        """The requests so far whose path matches."""
        return [asked for asked in self.log if re.search(path, asked.path) and asked.method == method]

    def app(self, origin: str) -> web.Application:
        @web.middleware
        async def log(request: web.Request, handler: Any) -> web.StreamResponse:
            authorized = "Authorization" in request.headers
            asked = Asked(origin, request.method, request.path, request.headers.get("Range"), authorized)
            self.log.append(asked)
            fault = self._fault(request)
            request[ASKED], request[FAULT] = asked, fault
            response: web.StreamResponse
            try:
                if fault.status is not None:
                    raise Refused(fault.status, fault.headers)
                response = await handler(request)
            except Refused as refused:
                response = web.json_response({}, status=refused.status, headers=refused.headers)
            asked.status = response.status
            return response

        app = web.Application(middlewares=[log])
        if origin == "store":
            app.router.add_get("/{hash}", self._stored)
            return app
        for repository in ("/api/datasets/{owner}/{name}", "/api/models/{owner}/{name}"):
            app.router.add_get(repository, self._info)
            app.router.add_get(repository + "/revision/{revision}", self._info)
            app.router.add_get(repository + "/tree/{revision}", self._tree)
            app.router.add_get(repository + "/tree/{revision}/{path:.*}", self._tree)
        for start in (
            "/datasets/{owner}/{name}/resolve",
            "/api/resolve-cache/datasets/{owner}/{name}",
            "/{owner}/{name}/resolve",
        ):
            app.router.add_get(start + "/{revision}/{path:.*}", self._resolve)
        return app

    def _fault(self, request: web.Request) -> Fault:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.path, request.path) and re.fullmatch(fault.method, request.method):
                fault.times -= 1
                return fault
        return Fault("")

    def _open(self, request: web.Request, content: bool) -> tuple[str, dict[str, bytes], Repository]:
        """The commit that a request is about, with its files; Refused if they are not for the one who asks."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        repository = self.repositories.get(_name(request))
        if repository is None or (repository.private and token != repository.private):
            raise Refused(404 if token else 401, code="RepoNotFound")
        if content and repository.gate and token != repository.gate:
            raise Refused(403 if token else 401, code="GatedRepo")
        revision = request.match_info.get("revision", "main")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            raise Refused(404, code="RevisionNotFound")
        return commit, repository.commits[commit], repository

    async def _info(self, request: web.Request) -> web.Response:
        commit, held, repository = self._open(request, content=False)
        siblings = []
        for path, data in held.items():
            entry = _entry(path, data)
            sibling = {"rfilename": path, "size": len(data), "blobId": entry["oid"]}
            if "lfs" in entry:
                sibling["lfs"] = {"sha256": entry["lfs"]["oid"], "size": len(data), "pointerSize": 130}
            siblings.append(sibling)
        gated = "manual" if repository.gate else False
        answer = {"id": _name(request), "sha": commit, "gated": gated, "tags": [], "siblings": siblings}
        return web.json_response(answer)

    async def _tree(self, request: web.Request) -> web.Response:
        """What is in a folder, or in all below it: files, and folders."""
        _, held, _ = self._open(request, content=False)
        folder = request.match_info.get("path", "")
        start, entries = folder and folder + "/", {}
        for path, data in held.items():
            if path.startswith(start):
                for end in (at for at, letter in enumerate(path) if letter == "/" and at > len(start)):
                    entries[path[:end]] = {"type": "directory", "path": path[:end], "size": 0, "oid": "0" * 40}
                entries[path] = _entry(path, data)
        if folder and not entries:
            raise Refused(404, code="EntryNotFound")
        deep = request.query.get("recursive") == "true"
        return web.json_response([entries[path] for path in entries if deep or "/" not in path.removeprefix(start)])

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        commit, held, _ = self._open(request, content=True)
        path = request.match_info["path"]
        if path not in held:
            raise Refused(404, code="EntryNotFound")
        data, entry = held[path], _entry(path, held[path])
        etag = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
        headers = {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        if "lfs" in entry:
            headers["Location"] = f"http://127.0.0.1:{self.store_port}/{etag}?signature=s"
            return web.Response(status=302, headers=headers)
        if self.cache_redirect and "resolve-cache" not in request.path:
            headers["Location"] = f"/api/resolve-cache/datasets/{_name(request)}/{commit}/{path}"
            return web.Response(status=307, headers=headers)
        return await _send(request, data, headers | {"ETag": f'"{etag}"'})

    async def _stored(self, request: web.Request) -> web.StreamResponse:
        for repository in self.repositories.values():
            for held in repository.commits.values():
                for data in held.values():
                    if hashlib.sha256(data).hexdigest() == request.match_info["hash"]:
                        return await _send(request, data, {"ETag": '"of-the-store"'})
        raise Refused(403)


def _name(request: web.Request) -> str:
    return f"{request.match_info['owner']}/{request.match_info['name']}"


def _entry(path: str, data: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid}
    if len(data) >= LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


async def _send(request: web.Request, data: bytes, headers: dict[str, str]) -> web.StreamResponse:
    """A file, or a range of it, with the faults that this request is to meet."""
    fault, asked, status, start = request[FAULT], request[ASKED], 200, 0
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if wanted and not fault.whole:
        start, status, size = int(wanted[1]), 206, len(data)
        if start >= size:
            raise Refused(416, {"Content-Range": f"bytes */{size}"})
        data = data[: int(wanted[2]) + 1] if wanted[2] else data
        headers = headers | {"Content-Range": f"bytes {start}-{len(data) - 1}/{size}"}
    body = data[start:] if fault.short is None else data[start : start + fault.short]
    if fault.garbage:
        body = bytes(byte ^ 1 for byte in body)
    response = web.StreamResponse(status=status, headers=headers | {"Content-Length": str(len(body))})
    asked.status = status
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    for at in range(0, len(body) if fault.cut is None else fault.cut, 1 << 14):
        block = body[at : min(at + (1 << 14), len(body) if fault.cut is None else fault.cut)]
        await response.write(block)
        asked.sent += len(block)
        await asyncio.sleep(fault.delay)
    if fault.cut is not None and request.transport is not None:
        await asyncio.sleep(0.05)  # let the bytes go out first
        request.transport.abort()
    return response


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers, and does not outlive the block."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    hub = Hub(*(each.getsockname()[1] for each in sockets))
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def serve() -> list[web.AppRunner]:
        runners = [web.AppRunner(hub.app(origin), access_log=None, shutdown_timeout=0.1) for origin in ("hub", "store")]
        for runner, each in zip(runners, sockets, strict=True):
            await runner.setup()
            await web.SockSite(runner, each).start()
        return runners

    def run() -> None:
        asyncio.set_event_loop(loop)
        runners = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        for runner in runners:
            loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield hub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)

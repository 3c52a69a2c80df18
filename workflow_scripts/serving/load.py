"""What a server says of its work, from /v1/loads (SGLang 0.5.23): numbers that its scheduler writes as it goes on.

`/health` says nothing of that: it answers while the scheduler hangs, and does not while a long prompt is read.
"""

import asyncio
from typing import Any

import aiohttp
import orjson

from workflow_scripts.serving.endpoints import Endpoint

# The tokens that its requests hold grow with every token made; the others change when requests come and go.
WATCHED = ("num_used_tokens", "num_running_reqs", "num_waiting_reqs", "total_prefill_uncached_tokens")


class NotTold(Exception):
    """The server has no /v1/loads."""


async def snapshot(session: aiohttp.ClientSession, endpoint: Endpoint, timeout: float) -> list[tuple[Any, ...]] | None:
    """The watched numbers of each data-parallel rank; None where the server does not answer in `timeout` seconds."""
    url = f"{endpoint.url}/v1/loads?include=core"
    try:
        async with asyncio.timeout(timeout), session.get(url, headers=endpoint.headers()) as response:
            raw = await response.read()
            if response.status == 404:
                raise NotTold
            if response.status != 200:
                return None
            return [tuple(load.get(name) for name in WATCHED) for load in orjson.loads(raw)["loads"]]
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError, AttributeError):
        return None


async def abort(session: aiohttp.ClientSession, endpoint: Endpoint, rids: list[str], timeout: float) -> None:
    """Ask the server to end these requests; whether it does is not waited for."""

    async def one(rid: str) -> None:
        try:
            async with session.post(f"{endpoint.url}/abort_request", json={"rid": rid}, headers=endpoint.headers()):
                pass
        except (aiohttp.ClientError, OSError):
            pass

    try:
        async with asyncio.timeout(timeout):
            await asyncio.gather(*map(one, rids))
    except TimeoutError:
        pass

"""A server that has requests in flight and gets nothing done is ended, so that another start can do them.

It gets something done when an answer of ours comes, or when its scheduler's numbers change (serving/load.py): tokens
made, requests that came and went, those of other jobs too. So no long generation is cut, and no queue counts as a hang.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from workflow_scripts.jobs import say
from workflow_scripts.serving import load
from workflow_scripts.serving.endpoints import Endpoint

LOOKS = 20  # in the time of the patience
LONGEST_LOOK = 30.0  # seconds that a server may take to say how it does


@dataclass
class Watchdog:
    """`patience` in seconds; `in_flight` counts the requests at the endpoint, `answered` all answers so far."""

    session: aiohttp.ClientSession
    patience: float
    endpoint: Callable[[], Endpoint]
    in_flight: Callable[[], int]
    answered: Callable[[], int]
    give_up: Callable[[Endpoint, str], Awaitable[None]]

    async def watch(self) -> None:
        """Look on until cancelled."""
        seen: tuple[Any, ...] = ()
        told = None
        progress = time.monotonic()
        while True:
            await asyncio.sleep(self.patience / LOOKS)
            endpoint = self.endpoint()
            if not self.in_flight():
                progress = time.monotonic()
                continue
            try:
                # A server that does not answer shows what it showed before.
                told = await load.snapshot(self.session, endpoint, min(LONGEST_LOOK, self.patience / 4)) or told
            except load.NotTold:
                say(f"{endpoint.name} has no /v1/loads: whether it makes progress can't be seen")
                return
            now = (endpoint.url, endpoint.start, self.answered(), told)
            if now != seen:
                seen, progress = now, time.monotonic()
            elif time.monotonic() - progress >= self.patience:
                reason = f"no token in {self.patience:g} s with {self.in_flight()} requests in flight"
                say(f"{endpoint.name}: {reason}; they are taken from it")
                await self.give_up(endpoint, reason)
                progress = time.monotonic()

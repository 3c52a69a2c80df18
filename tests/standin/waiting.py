"""Waiting for what another process does."""

import time
from collections.abc import Callable

DEADLINE = 120.0  # seconds; far more than anything that is waited for takes


def until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Return when `condition` holds; AssertionError if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)

"""The time limit of waits in tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

WAIT_TIMEOUT_S = 60.0
"""Seconds until a wait in a test fails. Only failures, or machines under heavy load, take that long."""


@asynccontextmanager
async def deadline(failure: str, timeout_s: float = WAIT_TIMEOUT_S) -> AsyncGenerator[None]:
    """Limit the time of a block; `failure` states what did not happen.

    Raises:
        TimeoutError: The block took longer than `timeout_s` seconds; the message has the failure.
    """
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"{failure} (within {timeout_s:g} s)") from None

"""Retries of model requests. The SDKs' own retries are disabled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import structlog

from banksman.agent.providers.base import DeltaSink, ProviderSettings
from banksman.contracts.errors import ProviderFailed

MAX_DELAY_S = 8.0
"""Maximum seconds between two attempts if the vendor names no time."""

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_MAX_MESSAGE_CHARS = 500

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class TransientFault(Exception):
    """An attempt failed, and another attempt may succeed."""

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        self.message = message[:_MAX_MESSAGE_CHARS]
        self.status = status
        self.retry_after_s = retry_after_s
        super().__init__(self.message)


def status_fault(
    provider: str, status: int, message: str, headers: Mapping[str, str]
) -> TransientFault | ProviderFailed:
    """Map an error status to an exception. The header `x-should-retry` of the vendors takes precedence."""
    transient = status in _TRANSIENT_STATUSES or status >= 500
    if headers.get("x-should-retry") in ("true", "false"):
        transient = headers["x-should-retry"] == "true"
    if transient:
        return TransientFault(message, status=status, retry_after_s=retry_after_s(headers))
    return ProviderFailed(provider, message[:_MAX_MESSAGE_CHARS], status=status)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait in `retry-after-ms` or `retry-after` (seconds or a date); None if missing."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    return _until(value) if seconds is None and value else seconds


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    *,
    provider: str,
    settings: ProviderSettings,
    deltas: DeltaSink,
    deadline_s: float,
) -> T:
    """Repeat `attempt` while it raises `TransientFault` and time and attempts remain.

    Raises:
        ProviderFailed: The last attempt failed, or the deadline passed.
    """
    scope = asyncio.timeout(deadline_s)
    try:
        async with scope:
            return await _repeat(attempt, provider, settings, deltas, scope)
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise ProviderFailed(
            provider, f"no complete reply within {deadline_s:g} s", unavailable=True
        ) from error


async def _repeat(
    attempt: Callable[[], Awaitable[T]],
    provider: str,
    settings: ProviderSettings,
    deltas: DeltaSink,
    scope: asyncio.Timeout,
) -> T:
    number = 1
    while True:
        try:
            return await attempt()
        except TransientFault as fault:
            delay_s = _delay_s(fault, number, settings)
            if number >= settings.max_attempts or not _fits(delay_s, scope):
                raise ProviderFailed(
                    provider, fault.message, status=fault.status, unavailable=True
                ) from fault
            _log.warning(
                "repeating the model request",
                provider=provider,
                attempt=number,
                status=fault.status,
                error=fault.message,
                delay_s=round(delay_s, 3),
            )
        await asyncio.sleep(delay_s)
        await deltas.restart()
        number += 1


def _delay_s(fault: TransientFault, number: int, settings: ProviderSettings) -> float:
    """Return the pause before the next attempt, randomized so that agents do not retry at the same time.

    It is the vendor's time plus up to 10 %, or else 50 to 100 % of a time that doubles.
    """
    if fault.retry_after_s is not None:
        return fault.retry_after_s * random.uniform(1.0, 1.1)
    return min(MAX_DELAY_S, settings.first_delay_s * 2 ** (number - 1)) * random.uniform(0.5, 1.0)


def _fits(delay_s: float, scope: asyncio.Timeout) -> bool:
    when = scope.when()
    return when is None or asyncio.get_running_loop().time() + delay_s < when


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.now(UTC)).total_seconds())

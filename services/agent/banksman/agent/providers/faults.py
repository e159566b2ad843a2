"""Failed attempts of a model request: which may be repeated, when, and what people read about them."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from banksman.contracts.errors import ProviderFailed
from banksman.contracts.live_output import WaitReason
from banksman.runtime.redaction import redacted

# 424 is Bedrock's status of a model that failed, 498 that of Groq without capacity.
_TRANSIENT_STATUSES = frozenset({408, 409, 424, 425, 429, 498})
_WAIT_REASONS: Mapping[int | None, WaitReason] = {
    429: "rate_limited",
    498: "overloaded",
    503: "overloaded",
    529: "overloaded",
}
_MAY_BE_BILLED = frozenset({504, 524})
"""Statuses of a proxy that stopped waiting for the model, which may still write a reply that is billed."""
_DURATION = re.compile(r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
_EPOCH_S, _EPOCH_MS = 1e9, 1e11
"""Numbers above these are times since 1970, in seconds or milliseconds."""
_MAX_MESSAGE_CHARS = 500
_PAGE = re.compile(r"<!doctype|<html", re.IGNORECASE)
_MARKUP = re.compile(r"<(?:script|style)\b[^<]*(?:<(?!/(?:script|style))[^<]*)*|<[^<>]*>?", re.IGNORECASE)
"""Tags, and scripts and styles with their content."""


class TransientFault(Exception):
    """An attempt failed, and another attempt may succeed."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        reason: WaitReason | None = None,
    ) -> None:
        """`reason` is by default that of the status."""
        self.message = shown_reason(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.reason: WaitReason = reason or _WAIT_REASONS.get(status, "failed")
        super().__init__(self.message)


def status_fault(
    provider: str, status: int, message: str, headers: Mapping[str, str]
) -> TransientFault | ProviderFailed:
    """Map an error status to an exception. The header `x-should-retry` of the vendors takes precedence."""
    transient = status in _TRANSIENT_STATUSES or (status >= 500 and status not in _MAY_BE_BILLED)
    if headers.get("x-should-retry") in ("true", "false"):
        transient = headers["x-should-retry"] == "true"
    if transient:
        wait_s = retry_after_s(headers)
        if wait_s is None and status == 429:
            wait_s = _reset_s(headers)
        return TransientFault(message, status=status, retry_after_s=wait_s)
    text = shown_reason(message)
    return ProviderFailed(provider, text, status=status, unavailable=status in _MAY_BE_BILLED)


def shown_reason(message: str) -> str:
    """Return the message of a server without secrets and in at most 500 characters, a page as its text."""
    if _PAGE.search(message):
        message = html.unescape(" ".join(_MARKUP.sub(" ", message).split()))
    return redacted(message)[:_MAX_MESSAGE_CHARS]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait in `retry-after-ms` or `retry-after` (seconds or a date); None if missing."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    return _wait_s(headers.get("retry-after") or "")


def _reset_s(headers: Mapping[str, str]) -> float | None:
    """Return the time until the last of the used up limits is reset; None if no header states one.

    `x-ratelimit-reset-requests: 6m0s` of OpenAI and Groq, `anthropic-ratelimit-tokens-reset` with a date,
    `X-RateLimit-Reset` of OpenRouter with milliseconds since 1970.
    """
    resets = {name: value for name, value in headers.items() if "ratelimit" in name and "reset" in name}
    used_up = [
        value for name, value in resets.items() if headers.get(name.replace("reset", "remaining")) == "0"
    ]
    return max((wait for wait in map(_wait_s, used_up) if wait is not None), default=None)


def _wait_s(value: str) -> float | None:
    """Return the seconds that a header states: a number, a duration, a date or a time since 1970."""
    seconds = _number(value)
    if seconds is not None:
        epoch_s = seconds / 1000 if seconds > _EPOCH_MS else seconds
        return seconds if seconds < _EPOCH_S else max(0.0, epoch_s - time.time())
    if value and (parts := _DURATION.fullmatch(value.strip())):
        return sum(float(part or 0) * unit for part, unit in zip(parts.groups(), _UNITS, strict=True))
    return _until(value)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None


def _until(date: str) -> float | None:
    try:
        moment = datetime.fromisoformat(date) if "T" in date[10:11] else parsedate_to_datetime(date)
    except (ValueError, OverflowError):  # `OverflowError` for a number that is no C integer.
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.now(UTC)).total_seconds())

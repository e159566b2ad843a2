"""The headers that passthrough forwards in each direction, and the key that it adds."""

from __future__ import annotations

from collections.abc import Mapping

from banksman.gateway.settings import Dialect, Upstream
from banksman.runtime.redaction import redacted

REQUEST_HEADERS = frozenset(
    {
        "accept",
        "accept-language",
        "content-type",
        "idempotency-key",
        "originator",
        "session-id",
        "traceparent",
        "user-agent",
        "x-app",
        "x-client-request-id",
    }
)
REQUEST_PREFIXES = ("anthropic-", "openai-", "x-stainless-")
RESPONSE_HEADERS = frozenset(
    {"content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry"}
)
RESPONSE_PREFIXES = ("anthropic-", "openai-", "x-ratelimit-")

# These headers select an account of the vendor, but the key, and so the account, is the gateway's.
_ACCOUNT_HEADERS = frozenset({"openai-organization", "openai-project"})


def request_headers(given: Mapping[str, str], upstream: Upstream, dialect: Dialect) -> dict[str, str]:
    """Return the headers of a request to an upstream: those of the client that are forwarded, and the key."""
    forwarded = {
        name: value
        for name, value in given.items()
        if name in REQUEST_HEADERS or (name.startswith(REQUEST_PREFIXES) and name not in _ACCOUNT_HEADERS)
    }
    # A compressed stream arrives in the blocks of its compression instead of event by event.
    return forwarded | {"accept-encoding": "identity"} | authorization(upstream, dialect)


def response_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an upstream's response that the client receives, without keys."""
    lower = {name.lower(): value for name, value in given.items()}
    return {
        name: redacted(value)
        for name, value in lower.items()
        if name in RESPONSE_HEADERS or name.startswith(RESPONSE_PREFIXES)
    }


def authorization(upstream: Upstream, dialect: Dialect) -> dict[str, str]:
    """Return the header with an upstream's key; empty if it has none."""
    if upstream.api_key is None:
        return {}
    key = upstream.api_key.get_secret_value()
    return {"x-api-key": key} if dialect == "anthropic" else {"authorization": f"Bearer {key}"}

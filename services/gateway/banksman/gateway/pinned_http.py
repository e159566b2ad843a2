"""HTTP requests to servers that another person named: checked connections, no redirects."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import httpcore

from banksman.contracts.urls import Url, UrlRefused
from banksman.runtime.pinned_network import AddressPolicy, HttpErrors, PinnedNetwork, connected_url, resolve
from banksman.runtime.redaction import Redaction, redacted

CONNECT_S = 4.0
"""Seconds to connect to one of the addresses of a name, before the next one is tried."""
MAX_PROBLEM_CHARS = 300
RequestErrors = (UrlRefused, *HttpErrors, OSError, ValueError)
"""Errors of `PinnedHttp.request`: of the connection, the server's HTTP, or values that are no headers."""


def problem_of(error: Exception, key: str | None) -> str:
    """Return the reason of a failed request for a person, without secrets and the key that was sent."""
    hidden = Redaction(() if key is None else (key,))
    return hidden.of(redacted(str(error)))[:MAX_PROBLEM_CHARS] or "no response in time"


async def body_of(response: httpcore.Response, most: int) -> bytes:
    """Return the body of a response; of one that is longer than `most` bytes, a beginning that is longer."""
    body = bytearray()
    async for piece in response.aiter_stream():
        body += piece
        if len(body) > most:
            break
    return bytes(body)


class PinnedHttp:
    """Sends requests. Connections are not reused: each request looks the name up and checks its addresses."""

    def __init__(self) -> None:
        self._tls = ssl.create_default_context()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        allowed: AddressPolicy,
    ) -> AsyncGenerator[httpcore.Response]:
        """Send a request; yield the response, whose body is not read yet. Raises one of `RequestErrors`."""
        sent = [("host", url.netloc), ("user-agent", "banksman"), ("accept-encoding", "identity")]
        encoded = [(name.encode(), value.encode()) for name, value in (*sent, *headers.items())]
        async with (
            httpcore.AsyncConnectionPool(
                ssl_context=self._tls, network_backend=PinnedNetwork(resolve, allowed)
            ) as pool,
            pool.stream(
                method,
                connected_url(url),
                headers=encoded,
                content=body,
                extensions={"timeout": {"connect": CONNECT_S}},
            ) as response,
        ):
            yield response

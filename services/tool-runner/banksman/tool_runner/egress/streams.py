from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpcore


class Connection(httpcore.AsyncNetworkStream):
    """A TCP connection that is closed if its TLS handshake is cancelled.

    httpcore closes it only after an error. A server that never finishes the handshake would otherwise hold a
    socket of the runner after each fetch: the event loop refers to it until the server closes it.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the signature is httpcore's
        """Return up to `max_bytes` received bytes; none at the end."""
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the signature is httpcore's
        """Send bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
    ) -> httpcore.AsyncNetworkStream:
        """Return the connection after its handshake.

        Raises:
            httpcore.ConnectError: The handshake failed; the connection is closed.
        """
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except asyncio.CancelledError:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        """Return information about the connection, such as the address of its server."""
        return self._stream.get_extra_info(info)

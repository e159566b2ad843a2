"""GET requests to health and monitoring endpoints of our own network."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a response; the longest one lists 100,000 connections of a NATS server."""
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


async def http_get(url: str, *, timeout_s: float) -> HttpReply:
    """Send a GET request to a server and return its response.

    The request ignores the proxies of the environment, which are for outgoing requests, and follows no
    redirects. An HTTP client library would be an import in every process for this one request.

    Raises:
        OSError: the server cannot be reached, has not responded within `timeout_s`, responds with more
            than `MAX_BYTES`, or does not respond by HTTP. The message names the address and the reason.
    """
    try:
        return await _get(url, timeout_s)
    except TimeoutError:
        raise TimeoutError(f"{_address(url)} did not respond within {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"{_address(url)} cannot be reached: {reason}") from error


def _address(url: str) -> str:
    """Return a URL without credentials and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def _get(url: str, timeout_s: float) -> HttpReply:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    async with asyncio.timeout(timeout_s):
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure or None)
        try:
            # A server must not send chunks to a client of HTTP/1.0, and it ends the body by closing the
            # connection: https://www.rfc-editor.org/rfc/rfc9112#section-6.1
            writer.write(f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
            received = bytearray()
            while piece := await reader.read(_PIECE_BYTES):
                received += piece
                if len(received) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES} bytes")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    head, end, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/") or not end:
        raise ValueError(f"not an HTTP response: {bytes(head[:40])!r}")
    return HttpReply(int(head.partition(b" ")[2][:3]), bytes(body))

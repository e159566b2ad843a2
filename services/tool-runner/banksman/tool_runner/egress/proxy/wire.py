from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpcore

READ_BYTES = 64 * 1024

ProxyErrors = (httpcore.NetworkError, httpcore.TimeoutException, OSError, EOFError)
"""Errors that end either side of a connection."""


@dataclass
class Exchange:
    """The log entry of one connection."""

    method: str = ""
    target: str = ""
    """Host and port of a tunnel; otherwise the URL without its query."""
    outcome: str = "ended"
    sent_bytes: int = 0
    received_bytes: int = 0


class OverLimit(Exception):
    """All connections of the command together have transferred the allowed bytes."""


@dataclass
class Meter:
    """Counts the bytes that the connections of a command may still transfer."""

    left: int

    def count(self, size: int) -> None:
        """Subtract `size` bytes.

        Raises:
            OverLimit: fewer bytes were left.
        """
        self.left -= size
        if self.left < 0:
            raise OverLimit


@dataclass
class Wire:
    """Both sides of a connection. Every transferred byte is counted."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: httpcore.AsyncNetworkStream
    exchange: Exchange
    meter: Meter
    idle_timeout_s: float

    async def from_client(self) -> bytes:
        """Read the next bytes from the command; empty at its end."""
        return await self.reader.read(READ_BYTES)

    async def to_server(self, data: bytes) -> None:
        """Send bytes to the server."""
        self.meter.count(len(data))
        await self.upstream.write(data, self.idle_timeout_s)
        self.exchange.sent_bytes += len(data)

    async def from_server(self) -> bytes:
        """Read the next bytes from the server; empty at its end."""
        data = await self.upstream.read(READ_BYTES, self.idle_timeout_s)
        self.meter.count(len(data))
        self.exchange.received_bytes += len(data)
        return data

    async def to_client(self, data: bytes) -> None:
        """Send bytes to the command."""
        self.writer.write(data)
        await self.writer.drain()

"""The HTTP proxy of a command whose assistant's policy allows connections, under the rules of a fetch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from banksman.runtime.backoff import Backoff
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.egress.network import HostRules
from banksman.tool_runner.egress.proxy_connection import READ_BYTES, ProxyLogEntry, TransferMeter, serve
from banksman.tool_runner.settings import ProxyLimits

logger = logging.getLogger(__name__)

_LINGER_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
"""Seconds before accept(2) is repeated after it failed."""


class CommandProxy:
    def __init__(self, egress: Egress, limits: ProxyLimits) -> None:
        self._egress = egress
        self._limits = limits

    @contextlib.asynccontextmanager
    async def session(self, rules: HostRules, label: str) -> AsyncGenerator[ProxySession]:
        """Serve the proxy of one command, which the log calls `label`; close all connections at the end."""
        session = ProxySession(self._egress, self._limits, rules, label)
        try:
            yield session
        finally:
            await session.close()


@dataclass
class ProxySession:
    egress: Egress
    limits: ProxyLimits
    rules: HostRules
    label: str

    def __post_init__(self) -> None:
        self._meter = TransferMeter(self.limits.max_bytes)
        self._slots = asyncio.Semaphore(self.limits.max_connections)
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._total = 0

    def listen(self, listener: socket.socket) -> None:
        """Accept connections on `listener`; the session owns and closes it."""
        listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    async def close(self) -> None:
        tasks = [*self._connections, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while self._total < self.limits.max_total_connections:
                # The slot is taken before accept, so that waiting connections stay in the kernel's backlog.
                await self._slots.acquire()
                connected = await self._next(listener)
                self._total += 1
                task = loop.create_task(self._serve(connected))
                self._connections.add(task)
                task.add_done_callback(self._ended)
        logger.warning("%s: proxy: %d connections were accepted, which is the limit", self.label, self._total)

    async def _next(self, listener: socket.socket) -> socket.socket:
        """Return the next connection; it waits in the kernel's backlog while it cannot be accepted."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                connected, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                # accept(2) fails while the process or the machine has too many open files or too little
                # memory (EMFILE, ENFILE, ENOBUFS, ENOMEM), and for a connection that ended (ECONNABORTED).
                logger.warning("%s: proxy: no connection is accepted: %s", self.label, error)
                await backoff.pause()
            else:
                return connected

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._slots.release()

    async def _serve(self, connected: socket.socket) -> None:
        exchange = ProxyLogEntry()
        started = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection(sock=connected)
        except (OSError, ValueError) as error:
            # epoll_ctl(2) has no memory, or the socket that the sandbox passed is not a stream socket.
            connected.close()
            logger.warning("%s: proxy: a connection could not be served: %s", self.label, error)
            return
        try:
            await serve(reader, writer, exchange, self.egress, self.rules, self._meter, self.limits)
        except Exception:
            logger.exception("%s: proxy: a connection failed", self.label)
        else:
            await _shut_down(reader, writer)
        finally:
            writer.transport.abort()
            logger.info(
                "%s: proxy: %s %s: %s, %d bytes up, %d bytes down, %.3f s",
                self.label,
                exchange.method or "-",
                exchange.target or "-",
                exchange.outcome,
                exchange.sent_bytes,
                exchange.received_bytes,
                time.monotonic() - started,
            )


async def _shut_down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send end-of-file and read until the command closes its side, for at most `_LINGER_S` seconds.

    Closing a socket with unread data sends a reset (RFC 1122, 4.2.2.13), which discards the response that the
    command has not read yet.
    """
    with contextlib.suppress(OSError):
        writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(READ_BYTES):
                pass

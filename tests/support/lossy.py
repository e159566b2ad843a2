"""A proxy between a client and a real nats-server that loses whole messages of either side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from tests.support.timeouts import deadline

Loses = Callable[[str, bytes], bool]
"""Decides whether to lose a message, by its subject and its payload (headers included)."""


class LossyWire:
    """Forwards bytes in both directions, but loses the messages to the client for which `loses` is true, and
    those to the server that `discards_next` names."""

    def __init__(self, server_port: int) -> None:
        self.loses: Loses = lambda subject, payload: False
        self.lost: list[str] = []
        """Subjects of the lost messages, in order."""
        self.port = 0
        self._loss = asyncio.Event()
        """Set when the first message is lost."""
        self._discards: bytes | None = None
        self._server_port = server_port
        self._links: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://127.0.0.1:{self.port}"

    def discards_next(self, subject_begins: str) -> None:
        """Lose the next message to the server whose subject begins with this text."""
        self._discards = f"HPUB {subject_begins}".encode()

    def lose_next(self, subject_begins: str, *, times: int = 1) -> None:
        """Lose the next messages whose subject begins with this text."""
        left = times

        def loses(subject: str, _payload: bytes) -> bool:
            nonlocal left
            if left and subject.startswith(subject_begins):
                left -= 1
                return True
            return False

        self.loses = loses

    async def until_lost(self) -> None:
        """Wait until a message was lost."""
        async with deadline("no message was lost"):
            await self._loss.wait()

    async def link(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Forward one client's connection until either side ends it."""
        server_in, server_out = await asyncio.open_connection("127.0.0.1", self._server_port)
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._to_server(client_in, server_out))
                both.create_task(self._to_client(server_in, client_out))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._links.discard(task)
            for writer in (client_out, server_out):
                writer.close()

    async def cut(self) -> None:
        """Cut every connection."""
        for link in tuple(self._links):
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    def _lose(self, subject: str) -> None:
        self.lost.append(subject)
        self._loss.set()

    async def _to_server(self, client_in: asyncio.StreamReader, server_out: asyncio.StreamWriter) -> None:
        while data := await client_in.read(65_536):
            # A client sends a message in one piece if nothing else waits to be sent.
            if self._discards is not None and data.startswith(self._discards):
                self._lose(self._discards.decode())
                self._discards = None
                continue
            server_out.write(data)
            await server_out.drain()
        raise ConnectionResetError

    async def _to_client(self, server_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        while True:
            line = await server_in.readuntil(b"\r\n")
            words = line.split()
            if words and words[0] in (b"MSG", b"HMSG"):
                payload = await server_in.readexactly(int(words[-1]) + 2)
                subject = words[1].decode()
                if self.loses(subject, payload[:-2]):
                    self._lose(subject)
                    continue
                line += payload
            client_out.write(line)
            await client_out.drain()


@asynccontextmanager
async def lossy_wire(server_port: int) -> AsyncGenerator[LossyWire]:
    """Run a proxy to the server on `server_port` during the block."""
    wire = LossyWire(server_port)
    listener = await asyncio.start_server(wire.link, "127.0.0.1", 0, limit=2**21)
    wire.port = int(listener.sockets[0].getsockname()[1])
    try:
        yield wire
    finally:
        listener.close()
        await wire.cut()
        with contextlib.suppress(OSError):
            await listener.wait_closed()

"""A mail server in tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class MailServer:
    """A mail server that refuses some messages, and accepts later ones."""

    port: int = 0
    refusals: int = 0
    """The number of further messages that it refuses."""
    starttls: ssl.SSLContext | None = None
    """Its side of TLS, which a client begins with STARTTLS; None for none."""
    farewell: bytes = b"221 bye\r\n"
    """Its reply to QUIT."""
    received: list[str] = field(default_factory=list[str])
    commands: list[str] = field(default_factory=list[str])
    """The names of the commands, oldest first; those within TLS as `TLS EHLO`."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example\r\n")
        while line := (await reader.readline()).decode().strip().upper():
            command = line.partition(" ")[0]
            encrypted = writer.get_extra_info("ssl_object") is not None
            self.commands.append(f"TLS {command}" if encrypted else command)
            match command:
                case "EHLO":
                    offers = self.starttls is not None and not encrypted
                    writer.write(
                        b"250-mail.example\r\n250 STARTTLS\r\n" if offers else b"250 mail.example\r\n"
                    )
                case "STARTTLS" if self.starttls is not None:
                    writer.write(b"220 go on\r\n")
                    await writer.start_tls(self.starttls)
                case "DATA":
                    writer.write(b"354 go on\r\n")
                    text = (await reader.readuntil(b"\r\n.\r\n")).decode()
                    self.received.append(text.removesuffix("\r\n.\r\n").replace("\r\n", "\n"))
                    writer.write(b"250 ok\r\n")
                case "MAIL" if self.refusals:
                    self.refusals -= 1
                    writer.write(b"451 later\r\n")
                case "QUIT":
                    writer.write(self.farewell)
                    break
                case _:
                    writer.write(b"250 ok\r\n")
        writer.close()


@asynccontextmanager
async def mail_server(mail: MailServer, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[MailServer]:
    """Serve on a free port, with `tls` from the first byte."""

    opened: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        # A client that refuses the certificate closes the connection.
        with suppress(OSError, EOFError):
            await mail.serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    mail.port = server.sockets[0].getsockname()[1]
    async with server:
        yield mail
        for writer in opened:
            if not writer.is_closing():
                writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

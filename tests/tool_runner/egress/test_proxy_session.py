"""The proxy of a command accepts connections as long as the command runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.tool_runner.conftest import TLS

from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.egress.proxy import CommandProxy
from banksman.tool_runner.settings import FetchLimits, ProxyLimits


@contextlib.contextmanager
def no_more_files() -> Generator[None]:
    """Let this process open no file: the limit is the lowest number that a new file would get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connection_that_cannot_be_accepted_yet_is_served_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process with too many open files logs it for the command, and the command keeps its network."""
    proxy = CommandProxy(Egress(FetchLimits(), ssl_context=TLS), ProxyLimits())
    refusal = f"c-files: proxy: no connection is accepted: [Errno {errno.EMFILE}] "
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    async with proxy.session(HostRules(), "c-files") as session:
        with contextlib.closing(socket.create_connection(address, WAIT_TIMEOUT_S)) as client:
            with no_more_files():
                session.listen(listener)
                await eventually(lambda: any(line.startswith(refusal) for line in caplog.messages))
            client.sendall(b"GET nothing HTTP/1.1\r\n\r\n")
            response = await asyncio.to_thread(client.recv, 4096)
    assert response.startswith(b"HTTP/1.1 400 ")


async def test_connection_that_cannot_be_served_is_closed_and_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A socket of packets is accepted like one of streams, and only its use fails."""
    proxy = CommandProxy(Egress(FetchLimits(), ssl_context=TLS), ProxyLimits())
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "proxy"))
    listener.listen()
    async with proxy.session(HostRules(), "c-packets") as session:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(WAIT_TIMEOUT_S)
            session.listen(listener)
            client.connect(str(tmp_path / "proxy"))
            end = await asyncio.to_thread(client.recv, 4096)
    assert end == b""
    logged = [line for line in caplog.messages if line.startswith("c-packets: ")]
    assert len(logged) == 1
    assert logged[0].startswith("c-packets: proxy: a connection could not be served: ")

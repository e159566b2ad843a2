"""Connections of clients, as the kernel has them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator

from tests.gateway.conftest import Served


def _accepted(port: int) -> Iterator[socket.socket]:
    """This process's ends of the connections that clients made to a port."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
        except OSError:  # closed since it was listed
            continue
        with found:
            if found.family == socket.AF_INET and found.getsockname()[1] == port and _peer(found):
                yield found


def _peer(connection: socket.socket) -> bool:
    try:
        return bool(connection.getpeername())
    except OSError:
        return False


async def test_what_is_sent_does_not_wait_until_the_client_has_acknowledged_what_went_before(
    gateway: Served,
) -> None:
    """The kernel's delay of small writes is off: it costs 40 ms an answer, and breaks the flow of tokens."""
    async with gateway.http as http, gateway.raw():
        await http.get("/healthz")

        delays = [
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
            for one in _accepted(gateway.running.port)
        ]

    assert len(delays) >= 2
    assert not any(delays)

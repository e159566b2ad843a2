"""Socket options of client connections."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator

from tests.gateway.conftest import Served


def _accepted(port: int) -> Iterator[socket.socket]:
    """Yield this process's sockets of the connections to a port."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
        except OSError:  # Closed after it was listed.
            continue
        with found:
            if found.family == socket.AF_INET and found.getsockname()[1] == port and _peer(found):
                yield found


def _peer(connection: socket.socket) -> bool:
    try:
        return bool(connection.getpeername())
    except OSError:
        return False


async def test_connections_send_without_waiting_for_acknowledgements(
    gateway: Served,
) -> None:
    """TCP_NODELAY is set: Nagle's algorithm delays responses by 40 ms and makes token streams uneven."""
    async with gateway.http as http, gateway.raw():
        await http.get("/healthz")

        delays = [
            one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
            for one in _accepted(gateway.running.port)
        ]

    assert len(delays) >= 2
    assert not any(delays)

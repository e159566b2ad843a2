"""Ports that a process finds free again when it is restarted."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_CHANCE = random.SystemRandom()
_given: set[int] = set()


def lasting_port() -> int:
    """A free TCP port that no outgoing connection of this machine will be given while its owner is away."""
    while True:
        port = _CHANCE.randrange(_LOWEST, _first_outgoing())
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _first_outgoing() -> int:
    """Where the ports begin that the kernel takes for outgoing connections."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

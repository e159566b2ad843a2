"""Free TCP ports."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from banksman.contracts.errors import BadInput

_MIN_PORT = 10_000
_CHOICE = 1_000
_DEFAULT_FIRST_OUTGOING = 32_768
_RANDOM = random.SystemRandom()
_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free TCP port that this process has not returned before.

    The port lies below the range that the kernel uses for outgoing connections. A port from that range (as
    binding to port 0 returns) could be taken while the process that listens on it restarts.
    """
    while True:
        port = _RANDOM.randrange(_MIN_PORT, _first_outgoing())
        if port not in _given and bind_error(host, port) is None:
            _given.add(port)
            return port


def require_free(host: str, port: int, variable: str) -> None:
    """Check that this process may listen on a port.

    Raises:
        BadInput: another program listens there, or this user may not listen on it.
    """
    # Servers set SO_REUSEADDR too: a port with connections in TIME_WAIT is free for them.
    if error := bind_error(host, port, reuse=True):
        raise BadInput(variable, port, _expected(error)) from error


def bind_error(host: str, port: int, *, reuse: bool = False) -> OSError | None:
    """Return the error of binding to an address, or None if it is free.

    Args:
        host: IPv4 or IPv6 address.
        port: Port number; 0 is always free.
        reuse: Whether ports with connections in TIME_WAIT count as free.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
        return None


def _first_outgoing() -> int:
    """Return the first port that the kernel uses for outgoing connections; its default if it uses all."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _DEFAULT_FIRST_OUTGOING
    return first if first > _MIN_PORT + _CHOICE else _DEFAULT_FIRST_OUTGOING


def _expected(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "a free port; another program listens there: stop it, or choose another port"
        case errno.EACCES:
            return "a port that this user may use, 1024 or higher"
        case _:
            return f"an address of this machine ({error.strerror})"

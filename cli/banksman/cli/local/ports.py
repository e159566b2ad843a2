from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from banksman.contracts.errors import BadInput

_LOWEST = 10_000
_CHOICE = 1_000
_DEFAULT_FIRST_OUTGOING = 32_768
_CHANCE = random.SystemRandom()
_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """A free TCP port that stays free while the process that listens there is started again.

    The kernel takes none of these for outgoing connections, and this gives each one once.
    """
    while True:
        port = _CHANCE.randrange(_LOWEST, _first_outgoing())
        if port not in _given and _is_free(host, port):
            _given.add(port)
            return port


def require_free(host: str, port: int, variable: str) -> None:
    """Check that a port may be listened on.

    Raises:
        BadInput: another program has it, or this user may not use it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a port whose last connections still linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInput(variable, port, _expected(error)) from error


def _first_outgoing() -> int:
    """Where the ports begin that the kernel takes for outgoing connections, unless it takes all."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return _DEFAULT_FIRST_OUTGOING
    return first if first > _LOWEST + _CHOICE else _DEFAULT_FIRST_OUTGOING


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _expected(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "a free port; another program listens there: stop it, or choose another port"
        case errno.EACCES:
            return "a port that this user may use, 1024 or higher"
        case _:
            return f"an address of this machine ({error.strerror})"

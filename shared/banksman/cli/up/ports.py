from __future__ import annotations

import errno
import socket

from banksman.contracts.errors import BadInput


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


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


def _expected(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "a free port; another program listens there: stop it, or choose another port"
        case errno.EACCES:
            return "a port that this user may use, 1024 or higher"
        case _:
            return f"an address of this machine ({error.strerror})"

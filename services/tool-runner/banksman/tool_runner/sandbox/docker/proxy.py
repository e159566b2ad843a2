"""The proxy of commands in a container, which has no network but its own loopback.

The supervisor sends the listening socket to a local socket in a directory that only its container has. At
that time, no process of a command runs there that could send another socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from pathlib import Path

from banksman.contracts.wire import JsonObject
from banksman.tool_runner.sandbox.base import PROXY_PORT, OnListener
from banksman.tool_runner.sandbox.listener import ListenerInbox

MOUNT = "/run/banksman"
"""Where a container has its directory."""
_SOCKET = "proxy"


@contextlib.contextmanager
def receiving(directory: Path, on_listener: OnListener | None) -> Generator[JsonObject | None]:
    """Receive the listening socket during the block; yield what the supervisor needs to send it."""
    if on_listener is None:
        yield None
        return
    with contextlib.ExitStack() as opened:
        packets = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        # The address of a local socket has at most 107 bytes; the path of the workspaces may have more.
        path = f"/proc/self/fd/{fd}/{_SOCKET}"
        packets.bind(path)
        opened.callback(os.unlink, path)
        # The user of commands sends to it.
        os.chmod(path, 0o666)  # noqa: S103 - only one container has the directory
        opened.callback(ListenerInbox(packets, on_listener).close)
        yield {"port": PROXY_PORT, "to": f"{MOUNT}/{_SOCKET}"}

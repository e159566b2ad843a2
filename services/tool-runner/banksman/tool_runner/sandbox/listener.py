from __future__ import annotations

import asyncio
import socket

from banksman.tool_runner.sandbox.base import OnListener

_MESSAGE_BYTES = 64


class ListenerInbox:
    """Where the listening socket of a sandbox's proxy arrives.

    The socket belongs to the network of the sandbox, and the runner accepts on it from its own: nothing of
    the proxy runs inside, and nothing inside leads to another sandbox's.
    """

    def __init__(self, on_listener: OnListener) -> None:
        self._on_listener = on_listener
        self._ours, self.given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """`given` goes to the spawner; whoever gives it closes it."""
        self._ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._receive)

    def close(self) -> None:
        """Take nothing any more."""
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours)
            self._ours.close()

    def _receive(self) -> None:
        try:
            _, descriptors, _, _ = socket.recv_fds(self._ours, _MESSAGE_BYTES, 1)
        except OSError:
            descriptors = []
        self.close()
        if descriptors:
            listener = socket.socket(fileno=descriptors[0])
            listener.set_inheritable(False)
            self._on_listener(listener)

from __future__ import annotations

import asyncio
import socket

from banksman.tool_runner.sandbox.base import OnListener

_MESSAGE_BYTES = 64


class ListenerInbox:
    """Receives the listening socket of a sandbox's proxy.

    The socket belongs to the network namespace of the sandbox, and the runner accepts connections on it in
    its own namespace. No part of the proxy runs in the sandbox, and no sandbox can reach the proxy of
    another.
    """

    def __init__(self, on_listener: OnListener) -> None:
        self._on_listener = on_listener
        self._ours, self.given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """`given` goes to the spawner; the caller closes it afterwards."""
        self._ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._receive)

    def close(self) -> None:
        """Stop receiving."""
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

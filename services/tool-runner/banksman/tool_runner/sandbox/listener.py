"""The way of the listening socket of a sandbox's proxy to the runner."""

from __future__ import annotations

import asyncio
import socket

from banksman.tool_runner.sandbox.base import OnListener

_PACKET_BYTES = 64


class ListenerInbox:
    """Receives one listening socket, as a descriptor in the first packet of a local socket.

    The listening socket belongs to the network namespace of the sandbox, and the runner accepts connections
    on it in its own namespace. No part of the proxy runs in the sandbox, and no sandbox can reach the proxy
    of another.
    """

    def __init__(self, packets: socket.socket, on_listener: OnListener) -> None:
        """Own `packets`, which has a sender or a path already."""
        self._on_listener = on_listener
        self._packets = packets
        self._packets.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._packets, self._receive)

    def close(self) -> None:
        if self._packets.fileno() >= 0:
            self._loop.remove_reader(self._packets)
            self._packets.close()

    def _receive(self) -> None:
        try:
            _, descriptors, _, _ = socket.recv_fds(self._packets, _PACKET_BYTES, 1)
        except OSError:
            descriptors = []
        self.close()
        if descriptors:
            listener = socket.socket(fileno=descriptors[0])
            listener.set_inheritable(False)
            self._on_listener(listener)

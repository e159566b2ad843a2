"""A relay between a Docker client and a real engine that can be frozen and disconnected."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class Relay:
    """Forwards bytes in both directions, in threads: a client may block the event loop while it connects."""

    def __init__(self, path: Path, engine: str) -> None:
        self.host = f"unix://{path}"
        self._path = path
        self._engine = engine
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: set[socket.socket] = set()
        self._listener = self._listen()

    def freeze(self) -> None:
        """Stop forwarding in both directions; connections are still accepted."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Close every connection and accept no more."""
        with contextlib.suppress(OSError):
            # Shutdown wakes the accepting thread; close does not.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def repair(self) -> None:
        """Accept connections again."""
        self._listener = self._listen()

    def _listen(self) -> socket.socket:
        listener = socket.create_server(str(self._path), family=socket.AF_UNIX)
        self._path.chmod(0o666)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine.removeprefix("unix://"))
                self._open |= {client, engine}
                for ends in ((client, engine), (engine, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flowing.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._open.discard(end)


@contextlib.contextmanager
def relaying(path: Path, engine: str) -> Iterator[Relay]:
    """Run a relay to the engine at `engine` (`unix:///…`) during the block."""
    relay = Relay(path, engine)
    try:
        yield relay
    finally:
        relay.thaw()
        relay.cut()

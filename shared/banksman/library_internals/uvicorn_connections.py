"""uvicorn's HTTP protocol, with bounds for clients that open connections and do not use them.

uvicorn 0.54 limits neither the number of connections nor the time of a request's head and body, or of a
client that does not read. This module overrides methods of `H11Protocol` (`connection_made`,
`connection_lost`, `data_received`, `handle_websocket_upgrade`, `resume_writing`). It reads `transport`,
`client`, `cycle`, `conn` and `flow` of the protocol, and replaces its `app_state`, which each request
receives as `scope["state"]`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import ClassVar, Protocol

import h11
from prometheus_client import Counter
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

ADMITTED = "admitted"
"""Key of a connection's `AdmittedConnection` in `scope["state"]`."""
ABORT_S = 15.0
"""Seconds that a closed connection may take to send what is left."""
MIN_BYTES_PER_S = 8 * 1024
"""Rate of a body below which its time runs out."""
_SWEEP_S = 1.0
_WARN_EVERY_S = 60.0
_ENDED = Counter("banksman_ended_connections", "Client connections that were refused or ended.", ["reason"])

_Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The bounds of one listener. An unknown client is one that has not sent an accepted key."""

    total: int
    unknown: int
    """Connections of unknown clients; at the limit, a new one ends the oldest one."""
    unknown_per_address: int
    """The same of one address; of IPv6, of one /64 network."""
    header_s: float
    """Seconds for the head of a request, from the connection or from the first byte of a further request."""
    body_s: float
    """Seconds for a body, and without progress of a client that reads; bytes of a body extend them."""
    proxies: tuple[_Network, ...] = ()
    """Peers without a limit per address: many clients share their addresses."""


class Bounded(Protocol):
    """A protocol of a client's connection."""

    def refuse(self, status: bytes) -> None:
        """End the connection, with a response if none has begun."""
        ...


@dataclass(eq=False, slots=True)
class AdmittedConnection:
    """The place of one connection among those of its listener."""

    _among: OpenConnections
    source: str
    owner: str | None = None

    def know(self, owner: str) -> bool:
        """Note that the client sent an accepted key; return False if its owner has too many connections."""
        return self._among.know(self, owner)


@dataclass
class OpenConnections:
    """The connections of one listener."""

    limits: ListenerLimits
    _open: set[AdmittedConnection] = field(default_factory=set[AdmittedConnection])
    _unknown: dict[AdmittedConnection, Bounded] = field(default_factory=dict[AdmittedConnection, Bounded])
    """Oldest first."""
    _sources: dict[str, dict[AdmittedConnection, None]] = field(
        default_factory=lambda: defaultdict[str, dict[AdmittedConnection, None]](dict)
    )
    """Of `_unknown`, by source."""
    _owners: dict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    _requests: set[HttpProtocol] = field(default_factory=lambda: set[HttpProtocol]())
    """Those without websockets, whose times `_sweep` checks."""
    _sweeping: bool = False
    _warned_at: float = float("-inf")

    def enter(self, protocol: Bounded, address: str) -> AdmittedConnection | None:
        """Admit a connection, at a limit in place of the oldest unknown one; None if there is no place."""
        source = self._source(address)
        own = self._sources.get(source, ())
        if source and len(own) >= self.limits.unknown_per_address:
            self._evict(next(iter(own)), "address")
        full = len(self._open) >= self.limits.total
        if full or len(self._unknown) >= self.limits.unknown:
            if self._unknown:
                self._evict(next(iter(self._unknown)), "unknown")
            elif full:
                self.count("full")
                return None
        admitted = AdmittedConnection(self, source)
        self._open.add(admitted)
        self._unknown[admitted] = protocol
        self._sources[source][admitted] = None
        return admitted

    def know(self, admitted: AdmittedConnection, owner: str) -> bool:
        """Move a connection to its owner, who may have half of all."""
        if admitted.owner is not None or admitted not in self._open:
            return True
        if owner and self._owners[owner] >= self.limits.total // 2:
            self.count("owner")
            return False
        self._forget(admitted)
        admitted.owner = owner
        self._owners[owner] += 1
        return True

    def leave(self, admitted: AdmittedConnection) -> None:
        """End a connection; nothing happens if it has ended."""
        if admitted not in self._open:
            return
        self._open.discard(admitted)
        self._forget(admitted)
        if admitted.owner is not None:
            self._owners[admitted.owner] -= 1
            if not self._owners[admitted.owner]:
                del self._owners[admitted.owner]

    def watch(self, protocol: HttpProtocol) -> None:
        """Check the times of a connection until `unwatch`."""
        self._requests.add(protocol)
        if not self._sweeping:
            self._sweeping = True
            protocol.loop.call_later(_SWEEP_S, self._sweep, protocol.loop)

    def unwatch(self, protocol: HttpProtocol) -> None:
        self._requests.discard(protocol)

    def count(self, reason: str) -> None:
        """Count an ended connection, and log the first one of a minute."""
        _ENDED.labels(reason).inc()
        now = time.monotonic()
        if now - self._warned_at > _WARN_EVERY_S:
            self._warned_at = now
            counts = {"open": len(self._open), "unknown": len(self._unknown)}
            logger.warning("client connections are ended", extra={"reason": reason, **counts})

    def _source(self, address: str) -> str:
        """Return what shares a limit; empty for a peer without one."""
        try:
            ip = ip_address(address)
        except ValueError:
            return address
        ip = (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip
        if any(ip in network for network in self.limits.proxies):
            return ""
        return str(ip_network((ip, 64), strict=False) if isinstance(ip, IPv6Address) else ip)

    def _evict(self, admitted: AdmittedConnection, reason: str) -> None:
        protocol = self._unknown[admitted]
        self.leave(admitted)
        self.count(reason)
        protocol.refuse(b"503 Service Unavailable")

    def _forget(self, admitted: AdmittedConnection) -> None:
        self._unknown.pop(admitted, None)
        if (own := self._sources.get(admitted.source)) is not None:
            own.pop(admitted, None)
            if not own:
                del self._sources[admitted.source]

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for protocol in tuple(self._requests):
            protocol.check(now)
        self._sweeping = bool(self._requests)
        if self._sweeping:
            loop.call_later(_SWEEP_S, self._sweep, loop)


class HttpProtocol(H11Protocol):
    """Ends connections above the limits, and those whose client takes too long."""

    connections_of_listener: ClassVar[OpenConnections]
    admitted: AdmittedConnection | None = None
    _phase: tuple[object, ...] = ()
    _deadline: float = 0.0
    _received: int = 0
    _resumed: int = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Admit the connection or refuse it."""
        super().connection_made(transport)
        self.admitted = self.connections_of_listener.enter(self, self.client[0] if self.client else "")
        if self.admitted is None:
            self.refuse(b"503 Service Unavailable")
            return
        self.app_state = {**self.app_state, ADMITTED: self.admitted}
        self.connections_of_listener.watch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes and count them."""
        self._received += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self._resumed += 1
        super().resume_writing()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Pass the place of the connection to the protocol of its websocket."""
        self._leave()
        super().handle_websocket_upgrade(event)

    def check(self, now: float) -> None:
        """End the connection if its client takes too long for what the server waits for."""
        phase, limit_s = self._waits_for()
        if phase != self._phase:
            self._phase, self._deadline = phase, now + limit_s
        elif phase[0] == "body":
            earned_s = self._received / MIN_BYTES_PER_S
            self._deadline = min(self._deadline + earned_s, now + limit_s)
        self._received = 0
        if now <= self._deadline or limit_s == 0:
            return
        self.connections_of_listener.count(str(phase[0]))
        if phase[0] in ("read", "close"):
            self.transport.abort()
            return
        # Browsers open connections in advance, and take a response to no request for that of the next one.
        begun = phase[0] == "body" or self.conn.trailing_data[0]
        self.refuse(b"408 Request Timeout" if begun else b"")

    def _waits_for(self) -> tuple[tuple[object, ...], float]:
        """Return what the client must do next, and within how many seconds; 0 if it need do nothing."""
        limits = self.connections_of_listener.limits
        if self.transport.is_closing():
            return ("close",), ABORT_S
        if self.flow.write_paused:
            return ("read", self._resumed), limits.body_s
        if self.conn.their_state is h11.IDLE:
            return ("header", self.cycle), limits.header_s
        reading = not (self.flow.read_paused or self.conn.they_are_waiting_for_100_continue)
        if self.conn.their_state is h11.SEND_BODY and reading:
            return ("body", self.cycle), limits.body_s
        return ("server", self.cycle), 0

    def refuse(self, status: bytes) -> None:
        """End the connection, with a response of this status if none has begun and it is not empty."""
        begun = self.cycle and self.cycle.response_started and not self.cycle.response_complete
        if begun or self.flow.write_paused:
            self.transport.abort()
            return
        if status:
            head = b"HTTP/1.1 %s\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(head % status)
        self.transport.close()

    def _leave(self) -> None:
        self.connections_of_listener.unwatch(self)
        if self.admitted is not None:
            self.connections_of_listener.leave(self.admitted)


def http_protocol(connections: OpenConnections) -> type[HttpProtocol]:
    """Return the protocol of a listener's connections."""
    return type("BoundedHttpProtocol", (HttpProtocol,), {"connections_of_listener": connections})

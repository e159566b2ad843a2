"""The processes of the system and the NATS servers, as they report their state when an operator looks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import EVENTS, api
from banksman.contracts import subjects
from banksman.contracts.administration import ServiceState
from banksman.contracts.errors import BanksmanError
from banksman.contracts.wire import Stored, Timestamp
from banksman.runtime.http_get import http_get

KNOWN_REPLY_S = 3.0
"""Seconds to wait for processes that reported before; a readiness check may take two seconds."""
SILENCE_S = 0.3
"""Seconds without a reply after which no further unknown process is expected."""
REMEMBERED_S = 600.0
"""Seconds for which a process that no longer reports is listed."""
MAX_PROCESSES = 500
MONITORING_S = 2.0

_Key = tuple[str, str, int]
"""Service, host and process id."""


class ProcessState(ServiceState):
    """A process with its last report."""

    reported_at: Timestamp
    responds: bool
    """False if it did not reply now: it ended, hangs, or has no connection to NATS."""


class NatsServer(Stored):
    """A server of the cluster, or the single server."""

    name: str
    leads: bool
    """Whether it leads the stream of the logs."""
    reachable: bool
    lag: int
    """Number of messages of the logs that it has not received yet."""


class NatsState(Stored):
    """The NATS servers and their storage."""

    version: str
    """Version of the server to which this gateway is connected."""
    servers: tuple[NatsServer, ...]
    used_bytes: int | None
    """Bytes that JetStream uses on the monitored server; null without `nats.monitoring_url`."""
    max_bytes: int | None
    """Bytes that JetStream may use; null without `nats.monitoring_url`."""
    problem: str | None
    """Reason why a part of the state is unknown; null if it is complete."""


class Services(Stored):
    """All processes and servers."""

    processes: tuple[ProcessState, ...]
    """Sorted by service, host and process id."""
    nats: NatsState


@dataclass(slots=True)
class Processes:
    """Requests the state of all processes, and lists processes for ten minutes after their last report."""

    bus: Bus
    _known: dict[_Key, ProcessState] = field(default_factory=dict[_Key, ProcessState])

    async def read(self) -> Services:
        # The servers are read first, because this fails at once without a broker; reports take seconds.
        nats = await _nats(self.bus)
        return Services(processes=await self._processes(), nats=nats)

    async def _processes(self) -> tuple[ProcessState, ...]:
        reported = await self._reports()
        now = datetime.now(UTC)
        for key, state in tuple(self._known.items()):
            if now - state.reported_at > timedelta(seconds=REMEMBERED_S):
                del self._known[key]
        for key, state in reported.items():
            self._known[key] = ProcessState(**dict(state), reported_at=now, responds=True)
        for key in self._known.keys() - reported.keys():
            self._known[key] = self._known[key].model_copy(update={"responds": False})
        return tuple(self._known[key] for key in sorted(self._known))

    async def _reports(self) -> dict[_Key, ServiceState]:
        """Collect the replies until all known processes have replied and no further reply arrives."""
        found: dict[_Key, ServiceState] = {}
        replies: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
        subject = subjects.service_state()
        ends_at = asyncio.get_running_loop().time() + KNOWN_REPLY_S
        with self.bus.replies.expect(
            subject, replies.put_nowait, replies.put_nowait, until_reconnect=True
        ) as inbox:
            await self.bus.replies.send(subject, b"", inbox)
            while len(found) < MAX_PROCESSES:
                complete = bool(found) and all(
                    key in found for key, state in self._known.items() if state.responds
                )
                silent_at = asyncio.get_running_loop().time() + SILENCE_S
                try:
                    async with asyncio.timeout_at(min(ends_at, silent_at) if complete else ends_at):
                        reply = await replies.get()
                except TimeoutError:
                    break
                if isinstance(reply, BanksmanError):
                    raise reply
                if (state := _state(reply)) is not None:
                    found[state.service, state.host, state.pid] = state
        return found


def _state(reply: Message) -> ServiceState | None:
    try:
        return ServiceState.model_validate_json(reply.data)
    except ValidationError:
        # The process has a newer version.
        return None


async def _nats(bus: Bus) -> NatsState:
    info = await jetstream.call(bus, api("STREAM.INFO", EVENTS))
    used, most, problem = await _storage(bus.settings.monitoring)
    version = bus.nc.connected_server_version
    return NatsState(
        version=f"{version.major}.{version.minor}.{version.patch}",
        servers=_servers(info.get("cluster") or {}),
        used_bytes=used,
        max_bytes=most,
        problem=problem,
    )


def _servers(cluster: dict[str, Any]) -> tuple[NatsServer, ...]:
    leader = cluster.get("leader")
    followers = [
        NatsServer(
            name=one["name"], leads=False, reachable=not one.get("offline", False), lag=one.get("lag", 0)
        )
        for one in cluster.get("replicas") or ()
    ]
    leaders = [NatsServer(name=leader, leads=True, reachable=True, lag=0)] if leader else []
    return tuple(sorted((*leaders, *followers), key=lambda server: server.name))


async def _storage(monitoring_url: str | None) -> tuple[int | None, int | None, str | None]:
    if monitoring_url is None:
        return None, None, None
    try:
        reply = await http_get(f"{monitoring_url}/jsz", timeout_s=MONITORING_S)
        found = json.loads(reply.body)
        return int(found["storage"]), int(found["config"]["max_storage"]), None
    except (OSError, KeyError, TypeError, ValueError) as error:
        return None, None, f"{monitoring_url} does not report its storage: {error}"

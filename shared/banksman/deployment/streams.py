"""Creation and update of streams and consumers, and the check that they are as strong as required.

`Durability` is the readiness check of all services.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Mapping
from typing import Any, Self, cast

from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.jetstream import ApiError, call
from banksman.bus.secrets import create_ticket_secret
from banksman.contracts.errors import BanksmanError, Refused
from banksman.deployment.topology import (
    ConsumerConfig,
    StorageBudget,
    StreamConfig,
    Topology,
    app_topology,
    run_topology,
)
from banksman.deployment.users import APP
from banksman.runtime.http_get import http_get
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

MONITORING_TIMEOUT_S = 3.0
GROWS_WITHIN_S = 30.0
NEARLY_FULL = 0.8
LEAST_STORAGE = StorageBudget(1_000_000)
"""Minimum bytes for all streams together; the operator may give them more."""
RECHECK_S = 60.0
"""Seconds for which a positive result is reused. After that, weakened settings make a service unready."""
RETRY_S = 1.0

_JETSTREAM_OFF = "server: JetStream is off, expected on"
_SYNCS_LATE = (
    "server: sync_interval is not `always`, expected `always`: a power cut loses acknowledged messages"
)
_HALF_RESTORED = "a restore runs or was interrupted: repeat it with `banksman restore DIR --force`"
_UNKNOWN_SYNC = (
    "server: BANKSMAN_NATS__MONITORING_URL is not set; a single server reports its sync_interval there"
)

_AT_LEAST = ("max_bytes", "max_age", "num_replicas", "duplicate_window", "max_msg_size", "max_ack_pending")
"""Settings whose larger values are not weaker, so services of an earlier version stay ready with them."""


async def provision(bus: Bus, topology: Topology) -> tuple[str, ...]:
    """Create missing streams and consumers and update those that differ; return one line per change.

    The operator's user runs it before services start. It is safe to repeat. The server refuses a change of
    the storage or the retention of an existing stream with `ApiError`.
    """
    done: list[str] = []
    for stream in topology.streams:
        done += await _provision_stream(bus, stream)
    for consumer in topology.consumers:
        done += await provision_consumer(bus, consumer)
    if any(stream.name == names.kv_stream(names.SECRETS) for stream in topology.streams):
        # Created here, because no service may write it.
        await create_ticket_secret(bus)
    for line in done:
        logger.info("%s: %s", topology.account, line)
    return tuple(done)


async def provision_consumer(bus: Bus, consumer: ConsumerConfig) -> list[str]:
    """Create a consumer, or update it if its settings differ; return one line per change."""
    found = await _config(bus, consumer)
    if found is not None and not _differences(found, consumer.config()):
        return []
    await write_consumer(bus, consumer)
    return [f"{consumer.label} {'updated' if found else 'created'}"]


async def nearly_full(bus: Bus, topology: Topology) -> tuple[str, ...]:
    """Return one sentence for each stream that uses more than 80 % of its bytes."""
    found: list[str] = []
    for stream in topology.streams:
        info = await stream_info(bus, stream.name)
        most = int(info["config"]["max_bytes"]) if info else -1
        held = int(info["state"]["bytes"]) if info else 0
        if most > 0 and held > most * NEARLY_FULL:
            found.append(f"stream {stream.name} is {held * 100 // most} % full: {held} of {most} bytes")
    return tuple(found)


async def write_consumer(bus: Bus, consumer: ConsumerConfig) -> None:
    subject = names.api("CONSUMER.DURABLE.CREATE", consumer.stream, consumer.durable)
    body = {"stream_name": consumer.stream, "config": consumer.config(), "action": ""}
    deadline = asyncio.get_running_loop().time() + GROWS_WITHIN_S
    while True:
        try:
            await call(bus, subject, body)
            return
        except ApiError as error:
            # The server acknowledges an update to more replicas before the stream has them.
            growing = error.err_code == names.CODE_MORE_REPLICAS_THAN_STREAM
            if not growing or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.1)


async def verify(bus: Bus, topology: Topology) -> tuple[str, ...]:
    """Return one line for each stream, consumer or server setting that is missing or weaker than `topology`.

    A single server must sync every write (`sync_interval: always`), because otherwise a power cut loses
    acknowledged messages. The check reads this from `monitoring_url` of the connection's settings.
    """
    server = await _verify_server(bus.settings.monitoring, topology)
    if _JETSTREAM_OFF in server:
        return tuple(server)
    findings: list[str] = []
    try:
        for item in (*topology.streams, *topology.consumers):
            findings += await _verify(bus, item)
        # The services of the other account may not ask, and do nothing without those of this one.
        if topology.account == APP and await stream_info(bus, names.RESTORE) is not None:
            findings.append(_HALF_RESTORED)
    except ApiError as error:
        if error.err_code != names.CODE_NOT_ENABLED:
            raise
        findings.append(f"account {topology.account}: JetStream is off, expected on")
    return (*findings, *server)


async def _provision_stream(bus: Bus, stream: StreamConfig) -> list[str]:
    found = await _config(bus, stream)
    if found is None:
        await call(bus, names.api("STREAM.CREATE", stream.name), stream.config())
        return [f"{stream.label} created"]
    differences = _differences(found, stream.config())
    if not differences:
        return []
    await call(bus, names.api("STREAM.UPDATE", stream.name), {**found, **stream.config()})
    return [f"{stream.label} updated: {', '.join(differences)}"]


async def stream_info(bus: Bus, name: str) -> dict[str, Any] | None:
    """Return the server's info of a stream with `config` and `state`, or None if it does not exist."""
    return await _info(bus, "STREAM.INFO", name)


async def _config(bus: Bus, item: StreamConfig | ConsumerConfig) -> dict[str, Any] | None:
    if isinstance(item, StreamConfig):
        info = await stream_info(bus, item.name)
    else:
        info = await _info(bus, "CONSUMER.INFO", item.stream, item.durable)
    return None if info is None else cast(dict[str, Any], info["config"])


async def _info(bus: Bus, verb: str, *tokens: str) -> dict[str, Any] | None:
    try:
        return await call(bus, names.api(verb, *tokens))
    except ApiError as error:
        if error.err_code in (names.CODE_CONSUMER_NOT_FOUND, names.CODE_STREAM_NOT_FOUND):
            return None
        raise


async def _verify(bus: Bus, item: StreamConfig | ConsumerConfig) -> list[str]:
    found, wanted = await _config(bus, item), item.config()
    if found is None:
        return [f"{item.label} is missing"]
    weaknesses = [
        f"{item.label}: {field} is {found.get(field)!r}, expected {wanted[field]!r}"
        for field in _differences(found, wanted)
        if not (field in _AT_LEAST and _size(field, found.get(field)) > _size(field, wanted[field]))
    ]
    return [*weaknesses, f"{item.label}: backoff overrides ack_wait"] if found.get("backoff") else weaknesses


async def _verify_server(monitoring_url: str | None, topology: Topology) -> list[str]:
    alone = all(stream.replicas == 1 for stream in topology.streams)
    if monitoring_url is None:
        return [_UNKNOWN_SYNC] if alone else []
    try:
        reply = await http_get(f"{monitoring_url}/varz", timeout_s=MONITORING_TIMEOUT_S)
        config = cast(dict[str, Any], json.loads(reply.body)["jetstream"].get("config"))
    except (OSError, KeyError, ValueError) as error:
        # In a cluster this server may be down while others serve.
        unknown = f"server: {monitoring_url} does not report its sync_interval: {error}"
        return [unknown] if alone else []
    if not config:
        return [_JETSTREAM_OFF]
    return [_SYNCS_LATE] if alone and not config.get("sync_always") else []


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    # The server omits values that are false or zero.
    return [
        field for field, value in wanted.items() if found.get(field) != value and (found.get(field) or value)
    ]


def _size(field: str, value: int | None) -> float:
    """Return a limit as a number. No limit is 0 for an age, and -1 for other limits."""
    unlimited = 0 if field == "max_age" else -1
    return math.inf if (value or 0) == unlimited else value or 0


class Durability:
    """Checks that streams, consumers and the server are as strong as required."""

    def __init__(self, bus: Bus, topology: Topology) -> None:
        self._bus = bus
        self._topology = topology
        self._problem: str | None = None
        self._checked_at = float("-inf")
        self._checking: asyncio.Task[None] | None = None

    @classmethod
    def of_app(cls, bus: Bus) -> Self:
        """Return the check for gateways, agents and the workflows service."""
        return cls(bus, app_topology(LEAST_STORAGE, replicas=bus.settings.replicas))

    @classmethod
    def of_run(cls, bus: Bus) -> Self:
        """Return the check for tool-runners: their own account, the only one that they can inspect."""
        return cls(bus, run_topology(LEAST_STORAGE, replicas=bus.settings.replicas))

    async def problem(self) -> str | None:
        """Return what is missing or weaker than required; raise `Unavailable` if nothing is known.

        While nothing was missing, a repeated check does not delay the result of the last one.
        """
        now = asyncio.get_running_loop().time()
        if self._checking is None and (self._problem is not None or now - self._checked_at > RECHECK_S):
            self._checking = asyncio.create_task(self._check(now), name="durability")
            self._checking.add_done_callback(self._checked)
        if self._checking is not None and (self._problem or self._checked_at == float("-inf")):
            # All requests wait for the same check, which continues when a request times out. On a busy
            # machine, a check that each request restarted would never end.
            await asyncio.shield(self._checking)
        return self._problem

    async def holds(self, stop: asyncio.Event) -> bool:
        """Wait until there is no problem; return False if `stop` is set first."""
        logged: str | None = None
        while not stop.is_set():
            try:
                found = await self.problem()
            except BanksmanError as error:
                found = str(error)
            if found is None:
                return True
            if found != logged:
                logger.error("not ready: %s", found)
                logged = found
            await set_within(stop, RETRY_S)
        return False

    def _checked(self, _check: asyncio.Task[None]) -> None:
        self._checking = None

    async def _check(self, now: float) -> None:
        try:
            findings = await verify(self._bus, self._topology)
            for warning in await nearly_full(self._bus, self._topology):
                logger.warning("%s", warning)
        except Refused:
            # During a leader election requests fail, but the settings have not changed.
            if self._checked_at == float("-inf"):
                raise
            return
        self._problem = "; ".join(findings) or None
        self._checked_at = now

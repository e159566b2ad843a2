"""Start and stop the gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control_plane.broker import Intake
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.control_plane.service_states import reported_state
from banksman.bus.first_connection import keep_connecting
from banksman.deployment.streams import Durability
from banksman.deployment.users import GATEWAY, inbox_prefix
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.assistants.run_settings import ModelNames
from banksman.gateway.composition import FEATURES, compose
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.front import VERSION, Front, listening_front
from banksman.gateway.identity.api_keys import ApiKeys
from banksman.gateway.identity.auth import Tickets
from banksman.gateway.interfaces.http.perimeter import raise_file_limit
from banksman.gateway.interfaces.nats.asyncapi import asyncapi
from banksman.gateway.interfaces.nats.endpoints import ApiEndpoints, api_body
from banksman.gateway.interfaces.nats.replays import Replays
from banksman.gateway.interfaces.websocket.connection import ConnectionContext, Connections
from banksman.gateway.interfaces.websocket.session import CallerSockets
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.live.followed_runs import FollowedRuns
from banksman.gateway.operation.intake import JsonIntake
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.settings import GatewayServiceSettings
from banksman.log_integrity.damage import DamagedLogs
from banksman.runtime.health import Health
from banksman.runtime.service import ServiceProcess
from banksman.runtime.service import run as run_service

RECONNECT_AFTER_S = 1.0
DEMO_NOTICE = (
    "You're using the demo model, which understands plain requests such as “run `ls`”. "
    "For a real one, enter a key under Manage → Models, or set its environment variable before the start."
)


@dataclass(frozen=True, slots=True)
class Running:
    port: int
    connections: Connections
    """Its open websockets."""


@asynccontextmanager
async def joined(front: Front, bus: Bus) -> AsyncGenerator[Running]:
    """Serve everything until the context ends, then make clients reconnect elsewhere and finish requests."""
    health = front.health
    async with contextlib.AsyncExitStack() as stack:
        base = await _foundation(front, bus, stack)
        await compose(base, front.features)
        await stack.enter_async_context(base.damaged)
        connections = Connections(_connection_context(base))
        base.services[ApiKeys].on_revoked = connections.revoke
        asyncapi_document = await _nats_api(base, health)
        _add_measures(health, base, connections)
        settings = front.settings
        await stack.enter_async_context(bus.disk.watched(health, settings.disk.limits(), settings.data_dir))
        await stack.enter_async_context(reported_state(bus, health))
        state = front.app.state
        state.connections, state.asyncapi = connections, asyncapi_document
        try:
            yield Running(front.port, connections)
        finally:
            health.draining = True
            await connections.drain(RECONNECT_AFTER_S)
            front.http.callback(front.after_most_of_the_drain, base.services[FollowedRuns].end)
            await front.http.aclose()


async def _foundation(front: Front, bus: Bus, stack: contextlib.AsyncExitStack) -> Foundation:
    clock = await stack.enter_async_context(BrokerClock(bus))
    # nats-server closes a connection that a flood of requests makes too slow, so the API has its own.
    api = await stack.enter_async_context(_new_bus(front))
    await api.open()
    return Foundation(
        settings=front.settings,
        keys=front.keys,
        background=front.health.background,
        bus=bus,
        api=api,
        clock=clock,
        damaged=DamagedLogs(bus),
        dispatcher=front.dispatcher,
        stack=stack,
    )


@asynccontextmanager
async def serving(
    settings: GatewayServiceSettings, health: Health, features: tuple[Feature, ...] = FEATURES
) -> AsyncGenerator[Running]:
    """Listen, connect and serve everything until the context ends; raises as `listening_front`."""
    async with listening_front(settings, health, features) as front, _new_bus(front) as bus:
        await bus.open()
        _add_checks(front, bus)
        async with joined(front, bus) as running:
            yield running


def _connection_context(base: Foundation) -> ConnectionContext:
    services, settings = base.services, base.settings
    return ConnectionContext(
        settings=settings.gateway,
        keys=base.keys,
        tickets=services[Tickets],
        dispatcher=base.dispatcher,
        feeds=services[Feeds],
        pending=services[PendingApprovals],
        sockets=CallerSockets(settings.gateway.max_sockets_per_user),
        intake=services[JsonIntake],
        version=VERSION,
        notices=partial(_notices, settings, services[ModelNames]),
        operator_notices=base.bus.disk.notices,
    )


async def _nats_api(base: Foundation, health: Health) -> Callable[[], Mapping[str, Any]]:
    """Serve the NATS API, and return a function that builds its AsyncAPI document."""
    intake = await base.stack.enter_async_context(Intake(base.api, base.settings.gateway.tenant_rate))
    endpoints = ApiEndpoints(base.api, base.dispatcher)
    control = ControlPlane(
        base.api, endpoints.router, body=api_body(base.dispatcher.operations), intake=intake
    )
    health.checks["nats_api"] = base.api.problem
    await base.stack.enter_async_context(control)
    # The control plane ends after all requests: replays that follow conversations must end first.
    base.stack.callback(base.services[Replays].end)
    # Building the document takes most of a second, so it is built once and on request.
    return cache(lambda: asyncapi(endpoints.by_title.values(), VERSION, "The NATS API."))


def _new_bus(front: Front) -> Bus:
    return Bus(
        front.settings.nats,
        name=GATEWAY,
        inbox_prefix=inbox_prefix(GATEWAY),
        serves_clients=True,
        background=front.health.background,
    )


def _notices(settings: GatewayServiceSettings, models: ModelNames, tenant: str) -> tuple[str, ...]:
    demo = (settings.default_model or "").partition(":")[0] == "demo" and not any(models.of_tenant(tenant))
    return settings.gateway.notices or ((DEMO_NOTICE,) if demo else ())


def _add_checks(front: Front, bus: Bus) -> Durability:
    checks, durability = front.health.checks, Durability.of_app(bus)
    checks["nats"] = bus.problem
    if not front.settings.allow_weak_durability:
        checks["streams"] = durability.problem
    return durability


def _add_measures(health: Health, base: Foundation, connections: Connections) -> None:
    backlog = base.services[Backlog]
    health.checks["logs"] = base.damaged.unready
    health.warnings["logs"] = base.damaged.warning
    health.warnings["storage"] = backlog.logs.storage.warning
    health.measures["runs"] = backlog.measure
    health.used = lambda: len(connections.open)


async def main(settings: GatewayServiceSettings, process: ServiceProcess) -> None:
    """Listen at once, and serve everything once NATS is connected, until `process.stop` is set."""
    async with listening_front(settings, process.health) as front:
        await process.keep_starting(partial(_serve, front, process))


async def _serve(front: Front, process: ServiceProcess) -> None:
    def create() -> Bus:
        bus = _new_bus(front)
        process.health.checks["nats"] = bus.problem
        return bus

    bus = await keep_connecting(create, process.stop)
    if bus is None:
        return
    async with bus:
        durability = _add_checks(front, bus)
        if not (front.settings.allow_weak_durability or await durability.holds(process.stop)):
            return
        async with joined(front, bus):
            process.ready()
            await process.stop.wait()


def run() -> int:
    raise_file_limit()
    return run_service("gateway", GatewayServiceSettings, main)

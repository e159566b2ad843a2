"""Composition of the gateway, its start and its orderly end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.types import ASGIApp

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control import ControlPlane
from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.deployment.durability import Durability
from banksman.deployment.users import GATEWAY, GATEWAY_FILES, inbox_prefix
from banksman.gateway.asgi import errors
from banksman.gateway.asgi.perimeter import Perimeter
from banksman.gateway.http.assistants import assistants_router
from banksman.gateway.http.context import context_router
from banksman.gateway.http.documents import pages_router
from banksman.gateway.http.files import files_router
from banksman.gateway.http.prompts import prompts_router
from banksman.gateway.http.workflows import workflows_router
from banksman.gateway.nats_api.requests import Api
from banksman.gateway.nats_api.resources import Resources
from banksman.gateway.page.routes import page_router
from banksman.gateway.passthrough.routes import passthrough_router
from banksman.gateway.passthrough.upstreams import Upstreams
from banksman.gateway.service.auth import Keys, Tickets
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.client_requests import Service
from banksman.gateway.service.enhanced_prompts import EnhancedPrompts
from banksman.gateway.service.feeds import Fanout
from banksman.gateway.service.files import Files
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.usage import UsageReports
from banksman.gateway.service.views import Views
from banksman.gateway.settings import GatewayServiceSettings
from banksman.gateway.websocket.connection import FRAME_BYTES, Terms
from banksman.gateway.websocket.connections import Sockets
from banksman.gateway.websocket.protocol import SocketProtocol
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.placement import Placements
from banksman.runtime.health import Health, health_server, listening
from banksman.runtime.service import Life
from banksman.runtime.service import run as run_service

logger = logging.getLogger(__name__)

VERSION = version("banksman")
RECONNECT_AFTER_S = 1.0
DEMO_NOTICE = (
    "No model key is set: a demo model answers. It understands plain requests such as “run `ls`” only."
)


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that serves."""

    port: int
    sockets: Sockets


@asynccontextmanager
async def serving(settings: GatewayServiceSettings, health: Health) -> AsyncGenerator[Running]:
    """Serve until the context ends; then tell clients to go elsewhere, and finish what is open.

    Raises:
        Unavailable: NATS cannot be reached.
        BadInput: a setting is missing.
        OSError: the port is taken.
    """
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(await _connect(settings))
        outputs = await _outputs(settings, bus, stack)
        clock = await stack.enter_async_context(BrokerClock(bus))
        placements = await stack.enter_async_context(
            Placements(bus, clock, wait_s=settings.workspaces.wait_s)
        )
        log = EventLog(bus)
        hub = await stack.enter_async_context(LiveHub(log))
        damaged = DamagedLogs(bus)
        views = Views(log, damaged=damaged)
        backlog = Backlog(
            bus,
            most=settings.gateway.max_waiting_runs,
            most_of_tenant=settings.gateway.max_waiting_runs_per_tenant,
        )
        service = Service(
            bus,
            views,
            clock,
            signing_key=settings.approvals.key(),
            default_model=settings.default_model,
            backlog=backlog,
        )
        keys, tickets, fanout = Keys(settings.gateway), Tickets(bus, clock), Fanout(bus, hub, views)
        damaged.on_found = fanout.lost
        await stack.enter_async_context(damaged)
        gateway = Gateway(
            settings=settings.gateway,
            keys=keys,
            tickets=tickets,
            service=service,
            runs=Runs(bus, hub, views, service.conversations),
            fanout=fanout,
            files=Files(placements, outputs),
            usage=UsageReports(bus, clock, settings.tenants),
            enhanced=EnhancedPrompts(service, settings.agent, placements),
        )
        terms = Terms(
            service,
            fanout,
            keys,
            version=VERSION,
            notices=_notices(settings),
            frames_per_s=settings.gateway.frames_per_s,
            hello_s=settings.gateway.hello_timeout_s,
        )
        sockets = Sockets(terms, tickets)
        control = ControlPlane(bus, title="Banksman", version=VERSION, description="The door over NATS.")
        Api(bus, service).serve_on(control)
        Resources(service.assistant_desk, gateway.usage).serve_on(control)
        await stack.enter_async_context(control)
        _add_checks(health, settings, bus)
        health.checks["logs"] = damaged.unready
        health.warnings["logs"] = damaged.warning
        health.measures["runs"] = backlog.measure
        upstreams = await stack.enter_async_context(
            Upstreams(settings.upstreams, timeout_s=settings.gateway.upstream_timeout_s)
        )
        app = application(gateway, sockets, upstreams, health, control.asyncapi)
        await stack.enter_async_context(health_server(health, settings.gateway))
        port = await stack.enter_async_context(listening(_http_config(app, settings)))
        logger.info("listening", extra={"host": settings.gateway.host, "port": port, "keyless": keys.keyless})
        try:
            yield Running(port, sockets)
        finally:
            health.draining = True
            await sockets.drain(RECONNECT_AFTER_S)


def application(
    gateway: Gateway,
    sockets: Sockets,
    upstreams: Upstreams,
    health: Health,
    asyncapi: Callable[[], Mapping[str, Any]],
) -> ASGIApp:
    """The gateway's ASGI application."""
    app = FastAPI(title="Banksman", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None)
    errors.install(app)
    app.router.routes.extend(health.routes())
    app.include_router(page_router())
    for router in (context_router, files_router, assistants_router, prompts_router, workflows_router):
        app.include_router(router(gateway))
    app.include_router(passthrough_router(gateway.keys, upstreams))
    app.include_router(pages_router(app, asyncapi))

    @app.websocket("/ws")
    async def websocket(socket: WebSocket) -> None:
        await sockets.serve(socket)

    return Perimeter(app, gateway.settings, gateway.keys)


def _http_config(app: ASGIApp, settings: GatewayServiceSettings) -> uvicorn.Config:
    gateway = settings.gateway
    return uvicorn.Config(
        app,
        host=gateway.host,
        port=gateway.port,
        ws=SocketProtocol,
        ws_max_size=FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        lifespan="off",
        log_config=None,
        # At level info uvicorn writes each websocket's address, tickets included.
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(gateway.drain_s),
    )


async def _connect(settings: GatewayServiceSettings) -> Bus:
    return await Bus.connect(
        settings.nats, name=GATEWAY, inbox_prefix=inbox_prefix(GATEWAY), answers_clients=True
    )


async def _outputs(settings: GatewayServiceSettings, bus: Bus, stack: contextlib.AsyncExitStack) -> Bus:
    if settings.gateway.outputs is None:
        return bus
    connection = await Bus.connect(
        settings.gateway.outputs, name=GATEWAY_FILES, inbox_prefix=inbox_prefix(GATEWAY_FILES)
    )
    return await stack.enter_async_context(connection)


def _notices(settings: GatewayServiceSettings) -> tuple[str, ...]:
    demo = (settings.default_model or "").partition(":")[0] == "demo"
    return settings.gateway.notices or ((DEMO_NOTICE,) if demo else ())


def _add_checks(health: Health, settings: GatewayServiceSettings, bus: Bus) -> None:
    health.checks["nats"] = bus.problem
    if not settings.allow_weak_durability:
        health.checks["streams"] = Durability.of_app(bus).problem


async def _streams_hold(settings: GatewayServiceSettings, life: Life) -> bool:
    """Wait for the streams, with the reason in this process's readiness; False when it ends first."""
    async with health_server(life.health, settings.gateway), await _connect(settings) as bus:
        durability = Durability.of_app(bus)
        life.health.checks["streams"] = durability.problem
        return await durability.holds(life.stop)


async def main(settings: GatewayServiceSettings, life: Life) -> None:
    """Serve until told to stop, from when the streams are as strong as promised."""
    if not settings.allow_weak_durability and not await _streams_hold(settings, life):
        return
    async with serving(settings, life.health):
        life.ready()
        await life.stop.wait()


def run() -> int:
    """The process's entry; returns its exit code."""
    return run_service("gateway", GatewayServiceSettings, main)

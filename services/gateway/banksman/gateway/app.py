"""Compose, start and stop the gateway."""

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

from banksman.bus.approval_slots import ApprovalSlots
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control import ControlPlane
from banksman.bus.kv import Bucket
from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.bus.names import IDEMPOTENCY
from banksman.bus.publish import RunQueue
from banksman.deployment.durability import Durability
from banksman.deployment.users import GATEWAY, GATEWAY_FILES, inbox_prefix
from banksman.gateway.asgi import errors
from banksman.gateway.asgi.perimeter import Perimeter
from banksman.gateway.http import approvals, assistants, conversations, files, prompts, runs, workflows
from banksman.gateway.http.documents import documents_router
from banksman.gateway.nats_api.bodies import api_body
from banksman.gateway.nats_api.router import api_router
from banksman.gateway.page import routes as page
from banksman.gateway.passthrough import routes as passthrough
from banksman.gateway.passthrough.upstreams import Upstreams
from banksman.gateway.service.assistants import Assistants
from banksman.gateway.service.auth import Keys
from banksman.gateway.service.backlog import Backlog
from banksman.gateway.service.client_requests import ClientRequests
from banksman.gateway.service.conversations import Conversations
from banksman.gateway.service.decisions import Decisions
from banksman.gateway.service.enhanced_prompts import EnhancedPrompts
from banksman.gateway.service.feeds import Feeds
from banksman.gateway.service.files import Files
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.idempotency import RequestRecord, StoredRequests
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.tenant_store import assistant_store, prompt_store
from banksman.gateway.service.tickets import Tickets
from banksman.gateway.service.tools import Tools
from banksman.gateway.service.usage import UsageReports
from banksman.gateway.service.views import Views
from banksman.gateway.service.workflows import Workflows
from banksman.gateway.settings import GatewayServiceSettings
from banksman.gateway.websocket.connection import FRAME_BYTES, ConnectionContext
from banksman.gateway.websocket.connections import Connections
from banksman.gateway.websocket.protocol import SocketProtocol
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.placement import Placements
from banksman.runs.ports import Clock
from banksman.runtime.health import Health, health_server, listening
from banksman.runtime.service import ServiceProcess
from banksman.runtime.service import run as run_service

logger = logging.getLogger(__name__)

VERSION = version("banksman")
RECONNECT_AFTER_S = 1.0
DEMO_NOTICE = (
    "No model key is set: a demo model replies. It understands plain requests such as “run `ls`” only."
)


@dataclass(frozen=True, slots=True)
class Running:
    """A running gateway."""

    port: int
    connections: Connections
    """Its open websockets."""


@asynccontextmanager
async def serving(settings: GatewayServiceSettings, health: Health) -> AsyncGenerator[Running]:
    """Serve until the context ends, then make clients reconnect elsewhere and finish the open requests.

    Raises:
        Unavailable: NATS cannot be reached.
        BadInput: A setting is missing.
        OSError: The port is taken.
    """
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(await _connect(settings, health))
        clock = await stack.enter_async_context(BrokerClock(bus))
        backlog = Backlog(
            bus,
            limit=settings.gateway.max_waiting_runs,
            limit_per_tenant=settings.gateway.max_waiting_runs_per_tenant,
        )
        damaged = DamagedLogs(bus)
        gateway = await _service(settings, bus, clock, backlog, damaged, stack)
        damaged.on_found = gateway.feeds.on_damage
        await stack.enter_async_context(damaged)
        connections = Connections(ConnectionContext(gateway, VERSION, _notices(settings)))
        control = ControlPlane(
            bus,
            api_router(bus, gateway),
            title="Banksman",
            version=VERSION,
            description="The NATS API.",
            body=api_body,
        )
        await stack.enter_async_context(control)
        _add_checks(health, settings, bus)
        health.checks["logs"] = damaged.unready
        health.warnings["logs"] = damaged.warning
        health.measures["runs"] = backlog.measure
        upstreams = await stack.enter_async_context(
            Upstreams(settings.upstreams, health.background, timeout_s=settings.gateway.upstream_timeout_s)
        )
        app = application(gateway, connections, upstreams, health, control.asyncapi)
        await stack.enter_async_context(health_server(health, settings.gateway))
        port = await stack.enter_async_context(listening(_http_config(app, settings)))
        keyless = gateway.keys.keyless
        logger.info("listening", extra={"host": settings.gateway.host, "port": port, "keyless": keyless})
        try:
            yield Running(port, connections)
        finally:
            health.draining = True
            await connections.drain(RECONNECT_AFTER_S)


async def _service(
    settings: GatewayServiceSettings,
    bus: Bus,
    clock: Clock,
    backlog: Backlog,
    damaged: DamagedLogs,
    stack: contextlib.AsyncExitStack,
) -> Gateway:
    placements = await stack.enter_async_context(Placements(bus, clock, wait_s=settings.workspaces.wait_s))
    log = EventLog(bus)
    hub = await stack.enter_async_context(LiveHub(log))
    views = Views(log, damaged=damaged)
    conversations, approvals = Conversations(bus, views, clock), ApprovalSlots(bus)
    assistants, prompts = assistant_store(bus), prompt_store(bus)
    requests = StoredRequests(Bucket(bus, IDEMPOTENCY, RequestRecord))
    tools, workflows = Tools(bus), Workflows(bus)
    return Gateway(
        settings=settings.gateway,
        keys=Keys(settings.gateway),
        tickets=Tickets(bus, clock),
        requests=ClientRequests(
            views=views,
            conversations=conversations,
            assistants=assistants,
            prompts=prompts,
            workflows=workflows,
            decisions=Decisions(approvals, tools, clock, settings.approvals.key()),
            requests=requests,
            queue=RunQueue(bus),
            backlog=backlog,
            clock=clock,
            default_model=settings.default_model,
        ),
        conversations=conversations,
        views=views,
        runs=Runs(bus, hub, views, conversations),
        feeds=Feeds(bus, hub, views),
        approvals=approvals,
        assistants=Assistants(assistants, prompts, requests),
        prompts=prompts,
        enhanced_prompts=EnhancedPrompts(conversations, views, assistants, tools, settings.agent, placements),
        workflows=workflows,
        files=Files(placements, await _outputs(settings, bus, stack)),
        usage=UsageReports(bus, clock, settings.tenants),
    )


def application(
    gateway: Gateway,
    connections: Connections,
    upstreams: Upstreams,
    health: Health,
    asyncapi: Callable[[], Mapping[str, Any]],
) -> ASGIApp:
    """Return the gateway's ASGI application: every interface but the NATS API."""
    app = FastAPI(
        title="Banksman",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.gateway, app.state.upstreams = gateway, upstreams
    errors.install(app)
    app.router.routes.extend(health.routes())
    app.include_router(page.routes)
    for part in (conversations, runs, approvals, files, assistants, prompts, workflows, passthrough):
        app.include_router(part.routes)
    app.include_router(documents_router(asyncapi))

    @app.websocket("/ws")
    async def websocket(socket: WebSocket) -> None:
        await connections.serve(socket)

    return Perimeter(app, gateway.settings, gateway.keys)


def _http_config(app: ASGIApp, settings: GatewayServiceSettings) -> uvicorn.Config:
    gateway = settings.gateway
    return uvicorn.Config(
        app,
        host=gateway.host,
        port=gateway.port,
        ws=SocketProtocol,
        ws_max_size=FRAME_BYTES,
        # An idle socket takes 25 KB without it, 122 KB with it.
        ws_per_message_deflate=False,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        lifespan="off",
        log_config=None,
        # At level info uvicorn logs each websocket's URL, tickets included.
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(gateway.drain_s),
    )


async def _connect(settings: GatewayServiceSettings, health: Health) -> Bus:
    return await Bus.connect(
        settings.nats,
        name=GATEWAY,
        inbox_prefix=inbox_prefix(GATEWAY),
        serves_clients=True,
        background=health.background,
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


async def _wait_for_streams(settings: GatewayServiceSettings, process: ServiceProcess) -> bool:
    """Wait until the streams are as durable as promised; return False if the process stops first.

    Until then readiness names the weaker settings.
    """
    async with (
        health_server(process.health, settings.gateway),
        await _connect(settings, process.health) as bus,
    ):
        durability = Durability.of_app(bus)
        process.health.checks["streams"] = durability.problem
        return await durability.holds(process.stop)


async def main(settings: GatewayServiceSettings, process: ServiceProcess) -> None:
    """Wait until the streams are as durable as promised, then serve until `process.stop` is set."""
    if not settings.allow_weak_durability and not await _wait_for_streams(settings, process):
        return
    async with serving(settings, process.health):
        process.ready()
        await process.stop.wait()


def run() -> int:
    """Run the process; return its exit code."""
    return run_service("gateway", GatewayServiceSettings, main)

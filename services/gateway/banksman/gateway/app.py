"""Compose, start and stop the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.types import ASGIApp, Receive, Scope, Send

from banksman.bus.approval_slots import ApprovalSlots
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus, keep_connecting
from banksman.bus.control import ControlPlane
from banksman.bus.intake import Intake
from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.bus.names import IDEMPOTENCY
from banksman.bus.publish import RunQueue
from banksman.contracts.errors import Unavailable
from banksman.deployment.durability import Durability
from banksman.deployment.storage import StorageRoom
from banksman.deployment.users import GATEWAY, GATEWAY_FILES, inbox_prefix
from banksman.gateway.a2a import routes as a2a
from banksman.gateway.agui import routes as agui
from banksman.gateway.asgi import errors
from banksman.gateway.asgi.cors import with_cors
from banksman.gateway.asgi.dependencies import NOT_CONNECTED
from banksman.gateway.asgi.perimeter import Perimeter
from banksman.gateway.http import (
    api_keys,
    approvals,
    assistants,
    chat,
    conversations,
    files,
    mcp_servers,
    operations,
    prompts,
    run_steps,
    runs,
    schedules,
    search,
    sign_in,
    tools,
    webhooks,
    workflows,
)
from banksman.gateway.http.documents import documents_router
from banksman.gateway.mcp import routes as mcp
from banksman.gateway.nats_api.asyncapi import asyncapi
from banksman.gateway.nats_api.bodies import api_body
from banksman.gateway.nats_api.replays import Replays
from banksman.gateway.nats_api.router import api_endpoints
from banksman.gateway.page import routes as page
from banksman.gateway.passthrough import models as usable_models
from banksman.gateway.passthrough import routes as passthrough
from banksman.gateway.passthrough.upstreams import Upstreams
from banksman.gateway.service.api_keys import ApiKeys
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
from banksman.gateway.service.inputs import Inputs
from banksman.gateway.service.log_room import LogRoom
from banksman.gateway.service.mcp_servers import McpServers
from banksman.gateway.service.model_catalog import ModelCatalog
from banksman.gateway.service.operations import Operations
from banksman.gateway.service.passthrough_usage import PassthroughUsage
from banksman.gateway.service.pending_approvals import PendingApprovals
from banksman.gateway.service.prompts import Prompts
from banksman.gateway.service.retention import Retention
from banksman.gateway.service.runs import Runs
from banksman.gateway.service.schedules.service import Schedules
from banksman.gateway.service.search import Search
from banksman.gateway.service.shared_bucket import SharedBucket
from banksman.gateway.service.step_details import StepDetails
from banksman.gateway.service.tenant_store import assistant_store, prompt_store
from banksman.gateway.service.tickets import Tickets
from banksman.gateway.service.tools import ToolCatalog, Tools
from banksman.gateway.service.usage import UsageReports
from banksman.gateway.service.views import Views
from banksman.gateway.service.webhooks.service import Webhooks
from banksman.gateway.service.workflow_texts import WorkflowTexts
from banksman.gateway.service.workflows import Workflows
from banksman.gateway.settings import GatewayServiceSettings
from banksman.gateway.websocket.connection import FRAME_BYTES, CallerSockets, ConnectionContext
from banksman.gateway.websocket.connections import Connections
from banksman.gateway.websocket.protocol import UnfinishedMessages, socket_protocol
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.placement import Placements
from banksman.runs.ports import Clock
from banksman.runs.schemas import SchemaChecker
from banksman.runtime.health import Health, health_server, listening
from banksman.runtime.service import ServiceProcess
from banksman.runtime.service import run as run_service

logger = logging.getLogger(__name__)

VERSION = version("banksman")
RECONNECT_AFTER_S = 1.0
FINISH_SHARE = 0.9
"""Share of `drain_s` in which open streams may finish; error events are sent in the rest."""
DEMO_NOTICE = (
    "You're using the demo model, which understands plain requests such as “run `ls`”. "
    "Set an API key for a real one."
)


@dataclass(frozen=True, slots=True)
class Running:
    """A running gateway."""

    port: int
    connections: Connections
    """Its open websockets."""


@dataclass(frozen=True, slots=True)
class Front:
    """The HTTP server of a gateway. Until it joins NATS it serves health, the page and passthrough."""

    settings: GatewayServiceSettings
    health: Health
    app: FastAPI
    keys: Keys
    port: int
    http: contextlib.AsyncExitStack
    """Ends the server: the open requests finish before what they use is closed."""


@asynccontextmanager
async def listening_front(settings: GatewayServiceSettings, health: Health) -> AsyncGenerator[Front]:
    """Listen until the context ends.

    Raises:
        BadInput: A setting is missing.
        OSError: The port is taken.
    """
    keys = Keys(settings.gateway)
    async with contextlib.AsyncExitStack() as stack:
        upstreams = await stack.enter_async_context(
            Upstreams(settings.upstreams, health.background, timeout_s=settings.gateway.upstream_timeout_s)
        )
        if settings.gateway.oidc is not None:
            from banksman.gateway.service.oidc import oidc_tokens

            keys.tokens = await stack.enter_async_context(
                oidc_tokens(settings.gateway.oidc, health.background)
            )
        app = application(keys, upstreams, health)
        await stack.enter_async_context(health_server(health, settings.gateway))
        http = await stack.enter_async_context(contextlib.AsyncExitStack())
        perimeter = with_cors(Perimeter(_with_websocket(app), settings.gateway, keys), settings.gateway)
        port = await http.enter_async_context(listening(_http_config(perimeter, settings)))
        http.callback(_end_streams_before, upstreams, settings.gateway.drain_s)
        logger.info("listening", extra={"host": settings.gateway.host, "port": port, "keyless": keys.keyless})
        yield Front(settings, health, app, keys, port, http)


@asynccontextmanager
async def joined(front: Front, bus: Bus) -> AsyncGenerator[Running]:
    """Serve everything until the context ends, then make clients reconnect elsewhere and finish the requests.

    Raises:
        Unavailable: NATS does not respond any more.
    """
    settings, health = front.settings, front.health
    async with contextlib.AsyncExitStack() as stack:
        clock = await stack.enter_async_context(BrokerClock(bus))
        backlog = Backlog(
            bus,
            limit=settings.gateway.max_waiting_runs,
            limit_of=settings.waiting_runs,
            logs=LogRoom(bus, StorageRoom(bus)),
        )
        damaged = DamagedLogs(bus)
        gateway = await _service(front, bus, clock, backlog, damaged, stack)
        damaged.on_found = gateway.feeds.on_damage
        await stack.enter_async_context(damaged)
        sockets = CallerSockets(settings.gateway.max_sockets_per_user)
        connections = Connections(ConnectionContext(gateway, sockets, VERSION, _notices(settings)))
        gateway.api_keys.on_revoked = connections.revoke
        asyncapi_document = await _nats_api(front, gateway, stack)
        _add_checks(health, settings, bus)
        health.checks["logs"] = damaged.unready
        health.warnings["logs"] = damaged.warning
        health.warnings["storage"] = backlog.logs.storage.warning
        health.measures["runs"] = backlog.measure
        state = front.app.state
        state.gateway, state.connections, state.asyncapi = gateway, connections, asyncapi_document
        try:
            yield Running(front.port, connections)
        finally:
            health.draining = True
            await connections.drain(RECONNECT_AFTER_S)
            await front.http.aclose()


@asynccontextmanager
async def serving(settings: GatewayServiceSettings, health: Health) -> AsyncGenerator[Running]:
    """Listen, connect and serve everything until the context ends.

    Raises:
        Unavailable: NATS cannot be reached.
        BadInput, OSError: As `listening_front`.
    """
    async with listening_front(settings, health) as front, _new_bus(settings, health) as bus:
        await bus.open()
        async with joined(front, bus) as running:
            yield running


async def _nats_api(
    front: Front, gateway: Gateway, stack: contextlib.AsyncExitStack
) -> Callable[[], Mapping[str, Any]]:
    """Serve the NATS API, and return what builds its AsyncAPI document.

    It has a connection of its own: the server closes one that a flood makes too slow.
    """
    api = await stack.enter_async_context(_new_bus(front.settings, front.health))
    await api.open()
    intake = await stack.enter_async_context(Intake(api, front.settings.gateway.tenant_rate))
    replays = Replays(api, gateway)
    endpoints = api_endpoints(api, gateway, replays)
    control = ControlPlane(
        api,
        endpoints.router,
        title="Banksman",
        version=VERSION,
        description="The NATS API.",
        body=api_body,
        intake=intake,
    )
    front.health.checks["nats_api"] = api.problem
    await stack.enter_async_context(control)
    # Otherwise the control plane waits for them at its end.
    stack.callback(replays.end)
    # Building it takes most of a second.
    return cache(lambda: asyncapi(control.asyncapi(), endpoints))


async def _service(
    front: Front,
    bus: Bus,
    clock: Clock,
    backlog: Backlog,
    damaged: DamagedLogs,
    stack: contextlib.AsyncExitStack,
) -> Gateway:
    settings = front.settings
    placements = await stack.enter_async_context(Placements(bus, clock, wait_s=settings.workspaces.wait_s))
    log = EventLog(bus)
    hub = await stack.enter_async_context(LiveHub(log))
    views = Views(log, damaged=damaged)
    conversations, approvals = Conversations(bus, views, clock), ApprovalSlots(bus)
    assistants, prompts = assistant_store(bus), prompt_store(bus)
    await stack.enter_async_context(assistants.recent)
    requests = StoredRequests(SharedBucket(bus, IDEMPOTENCY, RequestRecord, "accepted requests"))
    tools, workflows = Tools(bus), Workflows(bus)
    schemas = await stack.enter_async_context(SchemaChecker())
    runs_of_tenants = Runs(bus, hub, views, conversations)
    key = settings.approvals.key()
    enhanced_prompts = EnhancedPrompts(
        conversations, views, assistants, prompts, tools, settings.agent, placements
    )
    decisions = Decisions(approvals, conversations, views, tools, schemas, clock, key)
    client_requests = ClientRequests(
        views=views,
        conversations=conversations,
        assistants=assistants,
        prompts=prompts,
        workflows=workflows,
        decisions=decisions,
        inputs=Inputs(approvals, decisions, schemas, clock, key),
        requests=requests,
        queue=RunQueue(bus),
        backlog=backlog,
        clock=clock,
        default_model=settings.default_model,
    )
    await stack.enter_async_context(
        Retention(bus, conversations, views, client_requests, clock, settings.tenants)
    )
    scheduled = Schedules(bus, clock, client_requests, runs_of_tenants, settings.gateway)
    return Gateway(
        settings=settings.gateway,
        keys=front.keys,
        mcp_servers=McpServers(bus, placements, clock),
        webhooks=await stack.enter_async_context(
            Webhooks(bus, clock, key, settings.gateway.webhook_addresses)
        ),
        api_keys=await stack.enter_async_context(ApiKeys(bus, front.keys, clock)),
        tickets=Tickets(bus, clock),
        requests=client_requests,
        schedules=await stack.enter_async_context(scheduled),
        conversations=conversations,
        views=views,
        runs=runs_of_tenants,
        models=ModelCatalog(settings.default_model, settings.agent.prices),
        search=Search(bus, conversations),
        steps=StepDetails(runs_of_tenants, views, enhanced_prompts),
        feeds=Feeds(bus, hub, views),
        approvals=PendingApprovals(bus, approvals, conversations),
        approval_slots=approvals,
        assistants=Assistants(assistants, prompts, requests),
        prompts=Prompts(prompts, requests, enhanced_prompts),
        tools=ToolCatalog(tools, placements, settings.agent.tools_enabled),
        workflows=workflows,
        workflow_texts=WorkflowTexts(
            workflows=workflows,
            runs=runs_of_tenants,
            conversations=conversations,
            assistants=assistants,
            queue=RunQueue(bus),
            backlog=backlog,
            clock=clock,
            default_model=settings.default_model,
        ),
        files=Files(placements, await _outputs(settings, bus, stack)),
        operations=Operations(bus),
        usage=UsageReports(bus, clock, settings.tenants),
        passthrough=await stack.enter_async_context(PassthroughUsage(bus, clock, settings.tenants)),
    )


def application(keys: Keys, upstreams: Upstreams, health: Health) -> FastAPI:
    """Return the gateway's ASGI application: every interface but the NATS API.

    What needs NATS responds with 503 until its state has `gateway`, `connections` and `asyncapi`.
    """
    app = FastAPI(
        title="Banksman",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.keys, app.state.upstreams = keys, upstreams
    app.state.gateway = app.state.connections = app.state.asyncapi = None
    errors.install(app)
    app.router.routes.extend(health.routes())
    app.include_router(page.routes)
    parts = (conversations, runs, chat, approvals, files, assistants, prompts, tools, workflows, passthrough)
    for part in parts:
        app.include_router(part.routes)
    for part in (
        run_steps,
        search,
        usable_models,
        schedules,
        api_keys,
        sign_in,
        webhooks,
        mcp_servers,
        mcp,
        agui,
        a2a,
        operations,
    ):
        app.include_router(part.routes)
    app.include_router(documents_router(lambda: _asyncapi(app)))

    return app


def _with_websocket(app: FastAPI) -> ASGIApp:
    """Serve `/ws` before FastAPI, whose layers would take a third of an idle websocket's memory."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or scope["path"] != "/ws":
            await app(scope, receive, send)
            return
        socket = WebSocket(scope, receive, send)
        connections: Connections | None = app.state.connections
        if connections is None:
            await socket.send_denial_response(errors.error_response("/ws", Unavailable(NOT_CONNECTED)))
            return
        await connections.serve(socket)

    return serve


def _asyncapi(app: FastAPI) -> Mapping[str, Any]:
    if app.state.asyncapi is None:
        raise Unavailable(NOT_CONNECTED)
    return app.state.asyncapi()


def _is_no_cut_stream(record: logging.LogRecord) -> bool:
    # `Stream` ends like this on purpose when an upstream breaks off, which passthrough logs with its reason.
    return record.msg != "ASGI callable returned without completing response."


def _http_config(app: ASGIApp, settings: GatewayServiceSettings) -> uvicorn.Config:
    gateway = settings.gateway
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut_stream)
    return uvicorn.Config(
        app,
        host=gateway.host,
        port=gateway.port,
        ws=socket_protocol(UnfinishedMessages(gateway.message_timeout_s, gateway.max_unfinished_bytes)),
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
        timeout_graceful_shutdown=math.ceil(gateway.drain_s),
    )


def _end_streams_before(upstreams: Upstreams, drain_s: float) -> None:
    """Let open streams finish for most of the time to drain, and end the others with an error event."""
    asyncio.get_running_loop().call_later(drain_s * FINISH_SHARE, upstreams.end)


def _new_bus(settings: GatewayServiceSettings, health: Health) -> Bus:
    return Bus.create(
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


async def main(settings: GatewayServiceSettings, process: ServiceProcess) -> None:
    """Listen at once, and serve everything from when NATS is there until `process.stop` is set."""
    async with listening_front(settings, process.health) as front:
        while not process.stop.is_set():
            try:
                await _serve(front, process)
            except Unavailable as error:
                if process.health.started:
                    raise
                logger.warning("not ready: %s", error)


async def _serve(front: Front, process: ServiceProcess) -> None:
    def create() -> Bus:
        bus = _new_bus(front.settings, process.health)
        process.health.checks["nats"] = bus.problem
        return bus

    bus = await keep_connecting(create, process.stop)
    if bus is None:
        return
    async with bus:
        durability = Durability.of_app(bus)
        if not front.settings.allow_weak_durability:
            process.health.checks["streams"] = durability.problem
            if not await durability.holds(process.stop):
                return
        async with joined(front, bus):
            process.ready()
            await process.stop.wait()


def run() -> int:
    """Run the process; return its exit code."""
    return run_service("gateway", GatewayServiceSettings, main)

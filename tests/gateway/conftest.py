"""A real gateway on a free port, and its clients. The tests append commits instead of agents."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from aiohttp import web
from tests.support.fixtures import settings_of
from tests.support.nats import Broker
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.web_server import web_server
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.log import AppendConflict, EventLog
from banksman.contracts import subjects
from banksman.contracts.approvals import ApprovalForgotten
from banksman.contracts.events import (
    Commit,
    Event,
    EventBody,
    IterationStarted,
    MessageCompleted,
    Owner,
    RunFinished,
    RunStarted,
    ToolCallRequested,
)
from banksman.contracts.ids import approval_id_for, new_id
from banksman.contracts.tools import ToolCall
from banksman.contracts.work import ApprovalReply, ApprovalRequest, StartRun
from banksman.gateway.app import Running, serving
from banksman.gateway.composition import FEATURES
from banksman.gateway.feature import Feature
from banksman.gateway.settings import ApiKey, GatewayServiceSettings, GatewaySettings
from banksman.runs.approval.policy import approval_item, approval_requested
from banksman.runs.approval.requests import resolution
from banksman.runtime.health import Health
from banksman.runtime.settings import ApprovalSettings

SIGNING_KEY = "k" * 32
UNBOUNDED = 100_000
"""A frame rate (per second) that no test client exceeds."""
TOKENS = {user: f"token-of-{user}" for user in ("alice", "bob", "reader", "carol", "dan")}


def key_of(user: str, tenant: str, **more: Any) -> ApiKey:
    return ApiKey(sha256=hashlib.sha256(TOKENS[user].encode()).hexdigest(), tenant=tenant, user=user, **more)


@dataclass
class Served:
    """A running gateway and the connections of test clients to it."""

    running: Running
    health: Health
    bus: Bus
    tenant: str
    headers: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.running.port}"

    @property
    def http(self) -> httpx.AsyncClient:
        # Without TLS: reading the machine's certificates takes as long as starting a gateway.
        return httpx.AsyncClient(
            base_url=self.url, headers=self.headers, timeout=WAIT_TIMEOUT_S, verify=False
        )

    @asynccontextmanager
    async def raw(self, **options: Any) -> AsyncIterator[ClientConnection]:
        given = {"subprotocols": [Subprotocol("banksman.v1")], "compression": None, **options}
        path = given.pop("path", "/ws")
        async with connect(f"ws://127.0.0.1:{self.running.port}{path}", **given) as connection:
            yield connection

    @asynccontextmanager
    async def socket(self, user: str | None = None, **hello: Any) -> AsyncIterator[Socket]:
        async with self.raw() as connection:
            socket = Socket(connection)
            token = {"token": TOKENS[user]} if user else {}
            socket.welcome = await socket.request("hello", **token, **hello)
            yield socket


@dataclass
class Socket:
    """A websocket client that collects every frame."""

    connection: ClientConnection
    frames: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    welcome: dict[str, Any] = field(default_factory=dict[str, Any])

    async def send(self, type: str, **fields: Any) -> str:
        frame = {"type": type, "id": new_id("f"), **fields}
        await self.connection.send(json.dumps(frame))
        return frame["id"]

    async def request(self, type: str, **fields: Any) -> dict[str, Any]:
        """Send a frame and wait for its reply."""
        sent = await self.send(type, **fields)
        return await self.until(lambda frame: frame.get("reply_to") == sent)

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next frame that matches; `frames` collects all frames."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                frame = json.loads(await self.connection.recv())
                self.frames.append(frame)
                if wanted(frame):
                    return frame

    async def until_type(self, kind: str) -> dict[str, Any]:
        return await self.until(lambda frame: frame["type"] == kind)

    async def create(self, **fields: Any) -> str:
        return (await self.request("conversation.create", **fields))["conversation_id"]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if "seq" in frame and "data" in frame]


@asynccontextmanager
async def gateway_on(
    server: Broker, bus: Bus, tenant: str, *, features: tuple[Feature, ...] = FEATURES, **gateway: Any
) -> AsyncGenerator[Served]:
    parts = ("agent", "disk", "models", "nats", "search", "tenants")
    more = {name: gateway.pop(name) for name in parts if name in gateway}
    more.setdefault("nats", settings_of(server))
    settings = GatewayServiceSettings(
        approvals=ApprovalSettings.model_validate({"signing_key": SIGNING_KEY}),
        gateway=GatewaySettings(
            port=0, **{"keyless_tenant": tenant, "default_model": "demo:demo", **gateway}
        ),
        allow_weak_durability=True,
        **more,
    )
    health = Health("gateway", started=True)
    async with serving(settings, health, features) as running:
        yield Served(running, health, bus, tenant, {})


GatewayFactory = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def start_gateway(nats_server: Broker, bus: Bus, tenant: str) -> GatewayFactory:
    def start(**gateway: Any) -> AbstractAsyncContextManager[Served]:
        return gateway_on(nats_server, bus, tenant, **gateway)

    return start


@pytest.fixture
async def gateway(start_gateway: GatewayFactory) -> AsyncGenerator[Served]:
    """A keyless gateway on the loopback interface."""
    async with start_gateway() as served:
        yield served


@pytest.fixture
async def guarded(start_gateway: GatewayFactory, tenant: str) -> AsyncGenerator[Served]:
    """A gateway with keys: alice and reader of one tenant, bob of another."""
    keys = (
        key_of("alice", tenant, rights=("chat", "approve", "admin")),
        key_of("bob", new_id("t"), rights=("chat", "approve", "admin")),
        key_of("reader", tenant, may_approve=False, modes=("context",)),
    )
    async with start_gateway(keys=keys) as served:
        served.headers = {"authorization": f"Bearer {TOKENS['alice']}"}
        yield served


@dataclass
class Agent:
    """Acts as an agent: reads starts from the queue and appends the events of runs to the log."""

    bus: Bus
    tenant: str
    log_epoch: str = field(default_factory=lambda: new_id("e"))
    clock_error: timedelta = timedelta()
    """Added to the times of commits."""
    _ends: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By conversation: the stream sequence and the event number of the last commit."""

    async def started(self, conversation_id: str) -> StartRun:
        """Return the last stored start of a conversation."""
        message = await last_message(self.bus, RUNS, subjects.run_work(self.tenant, conversation_id))
        assert message is not None
        return StartRun.model_validate_json(message.data)

    async def commit(
        self, conversation_id: str, run_id: str | None, *bodies: EventBody, owned: bool = True
    ) -> Commit:
        stream_seq, last = self._ends.get(conversation_id, (0, 0))
        now = datetime.now(UTC) + self.clock_error
        events = tuple(
            Event(seq=last + number, ts=now, run_id=run_id, data=body)
            for number, body in enumerate(bodies, 1)
        )
        commit = Commit(
            ts=now,
            id=new_id("x"),
            log_epoch=self.log_epoch,
            first_seq=last + 1,
            owner=Owner(agent="agent", owner_epoch=1, work_seq=0) if owned else None,
            owner_epoch=1,
            events=events,
        )
        stored = await EventLog(self.bus).append(self.tenant, conversation_id, commit, after=stream_seq)
        assert not isinstance(stored, AppendConflict)
        self._ends[conversation_id] = (stored, commit.last_seq)
        return commit

    async def begin(self, start: StartRun) -> None:
        await self.commit(
            start.conversation_id,
            start.run_id,
            RunStarted(message_id=start.message_id, message=start.content, settings=start.settings),
            IterationStarted(n=1, max=start.settings.tools.max_iterations),
        )

    async def finish(self, start: StartRun, text: str = "Hello.", status: Any = "completed") -> None:
        await self.commit(
            start.conversation_id,
            start.run_id,
            MessageCompleted(
                message_id="m-" + start.run_id[-12:],
                role="assistant",
                content=text,
                finish_reason="stop",
                provider_state={"secret": "for the vendor only"},
            ),
            RunFinished(
                status=status, content=text, service="banksman", model=start.settings.model, iterations=1
            ),
            owned=False,
        )

    async def request_approval(
        self, start: StartRun, command: str = "ls", *, expires_s: float = 60
    ) -> ApprovalRequest:
        """Park the run on an approval request for one bash call, by the terms of its settings."""
        request = await self.log_approval_request(start, command, expires_s=expires_s)
        return await ApprovalSlots(self.bus).store_request(request)

    async def log_approval_request(
        self, start: StartRun, command: str = "ls", *, expires_s: float = 60
    ) -> ApprovalRequest:
        """Log an approval request, which an agent stores afterwards."""
        call = ToolCall(id=new_id("k"), name="bash", arguments={"command": command})
        item = approval_item(call)
        now = datetime.now(UTC)
        logged = approval_requested(
            approval_id_for(start.run_id),
            (item,),
            start.settings.approvals,
            now=now,
            expires_at=now + timedelta(seconds=expires_s),
        )
        await self.commit(
            start.conversation_id,
            start.run_id,
            MessageCompleted(message_id=new_id("m"), role="assistant", content=None),
            ToolCallRequested(call=call),
            logged,
            owned=False,
        )
        return ApprovalRequest(
            tenant=self.tenant,
            conversation_id=start.conversation_id,
            run_id=start.run_id,
            **logged.model_dump(exclude={"type"}),
        )

    async def reply(self, request: ApprovalRequest) -> ApprovalReply:
        """Return the stored reply to a request."""
        _, reply = await ApprovalSlots(self.bus).read(self.tenant, request.approval_id)
        assert reply is not None
        return reply

    async def resolve(self, request: ApprovalRequest) -> None:
        """Commit the stored reply to a request."""
        reply = await self.reply(request)
        await self.commit(request.conversation_id, request.run_id, *resolution(reply, request))

    async def forget(self, conversation_id: str, approval_id: str) -> None:
        """Commit the withdrawal of a remembered decision once a client requested it."""
        subject = subjects.run_signal(self.tenant, conversation_id)
        await eventually(lambda: last_message(self.bus, RUNS, subject), WAIT_TIMEOUT_S)
        await self.commit(conversation_id, None, ApprovalForgotten(approval_id=approval_id, by="nats"))


@pytest.fixture
def agent(bus: Bus, tenant: str) -> Agent:
    return Agent(bus, tenant)


@dataclass
class Receiver:
    """A server that receives webhooks and responds with the given statuses, then with 204."""

    port: int = 0
    statuses: list[int] = field(default_factory=list[int])
    received: list[tuple[dict[str, str], str]] = field(default_factory=list[tuple[dict[str, str], str]])
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}/hook"

    async def serve(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append((headers, await request.text()))
        self._arrived.set()
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)

    async def message(self, number: int) -> tuple[dict[str, str], str]:
        """Wait for the message of this number, counted from 1."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while len(self.received) < number:
                self._arrived.clear()
                await self._arrived.wait()
        return self.received[number - 1]


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.serve)
    async with web_server(app) as receiver.port:
        yield receiver


@pytest.fixture
async def sending(start_gateway: GatewayFactory, receiver: Receiver) -> AsyncGenerator[Served]:
    """A gateway whose webhooks may reach the receiver."""
    async with start_gateway(webhook_addresses=(receiver.address,)) as served:
        yield served

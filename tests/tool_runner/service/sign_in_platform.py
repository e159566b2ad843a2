"""A gateway, a runner and the senders of calls, with their own permissions, and an MCP server with OAuth."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.gateway.conftest import SIGNING_KEY, TOKENS, Served, gateway_on, key_of
from tests.support.fixtures import SecuredNats
from tests.support.forks import ServiceForks
from tests.support.mcp_oauth import Protected, protected
from tests.tool_runner.service.owner import Owner, owning
from tests.tool_runner.service.processes import RunnerProcess, Runners

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.messages import Message
from banksman.bus.names import MCP
from banksman.bus.storage.kv import Bucket
from banksman.cli.machine import free_port
from banksman.contracts import subjects
from banksman.contracts.calls import CallReply, CallRequest
from banksman.contracts.ids import new_id
from banksman.contracts.mcp import McpServer
from banksman.contracts.registry import OfferedTools
from banksman.contracts.tools import ToolResult
from banksman.deployment.users import GATEWAY, OPERATOR, WORKFLOWS
from banksman.runs.ports import Placement
from banksman.runs.runners.placement import Placements

SERVER = "/context/mcp-servers/issues"
PORT = free_port()
"""The port of the MCP servers of these tests: the operator of the runner allows it."""


@dataclass
class Platform:
    """The services that take part in a call, and the server that the call reaches."""

    http: httpx.AsyncClient
    operator: Bus
    owner: Owner
    placements: Placements
    """The placements of an agent."""
    workflows: Placements
    """The placements of the workflows service."""
    remote: Protected

    @property
    def issues(self) -> dict[str, Any]:
        """The configuration of the server."""
        return {"id": "issues", "transport": {"type": "http", "url": self.remote.url}}

    @property
    def key(self) -> str:
        return f"{self.owner.tenant}.issues"

    async def signed_in(self) -> httpx.Response:
        """Sign in as alice; return what her browser shows at the end."""
        begun = await self.http.post(f"{SERVER}/sign-in")
        assert begun.status_code == 200, begun.text
        return await self.returned(begun.json()["url"])

    async def returned(self, url: str, cookies: httpx.Cookies | None = None) -> httpx.Response:
        """Open a page of the authorization server, as a browser without a key does; by default, alice's."""
        cookies = self.http.cookies if cookies is None else cookies
        async with httpx.AsyncClient(verify=False, follow_redirects=True, cookies=cookies) as browser:
            return await browser.get(url)

    async def request(self, *tokens: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to the NATS API."""
        subject = subjects.api(self.owner.tenant, *tokens)
        return json.loads(await self.operator.request(subject, json.dumps(body or {}).encode(), 30))

    async def approved(self) -> None:
        server = (await self.http.get(SERVER)).json()
        approved = await self.http.post(f"{SERVER}/approve", json={"digest": server["changes_digest"]})
        assert approved.status_code == 200, approved.text

    async def send(
        self, placements: Placements | None = None, user: str = ""
    ) -> tuple[CallReply | None, CallRequest]:
        """Send a call, as an agent does unless others are given; `user` is for whom the run acts."""
        request = self.owner.request("issues__echo").model_copy(update={"user": user})
        placement = Placement(self.owner.runner.id, self.owner.runner.epoch)
        return await (placements or self.placements).call(placement, request), request

    async def called(self, placements: Placements | None = None, user: str = "") -> ToolResult:
        reply, request = await self.send(placements, user)
        assert reply is not None and reply.answer == "accepted", reply
        return await self.owner.result(request)

    async def stored(self) -> McpServer:
        entry = await Bucket(self.operator, MCP, McpServer).get(self.key)
        assert entry is not None
        return entry.value


@contextmanager
def runner_on(secured: SecuredNats, forks: ServiceForks) -> Generator[RunnerProcess]:
    """Run a runner that may reach the server of these tests."""
    made = Runners(secured, forks)
    allowed = f'["127.0.0.1:{PORT}"]'
    yield made.start(BANKSMAN_TOOL_RUNNER__EGRESS__ALLOW_PRIVATE_ADDRESSES=allowed)
    made.close()


@asynccontextmanager
async def platform_on(secured: SecuredNats, runner: RunnerProcess) -> AsyncGenerator[Platform]:
    """Start a gateway and a server that demands a sign-in."""
    async with (
        owning(secured, runner) as owner,
        await secured.connect(OPERATOR) as operator,
        await secured.connect(WORKFLOWS) as workflows,
        gateway_of(secured, operator, owner.tenant) as served,
        served.http as http,
        BrokerClock(owner.bus) as clock,
        protected(PORT) as remote,
    ):
        await offering(owner.bus)
        http.headers["authorization"] = f"Bearer {TOKENS['alice']}"
        agents, services = (
            Placements(bus, clock, tickets=owner.tickets, signing_key=SIGNING_KEY.encode())
            for bus in (owner.bus, workflows)
        )
        yield Platform(http, operator, owner, agents, services, remote)


@asynccontextmanager
async def gateway_of(secured: SecuredNats, operator: Bus, tenant: str) -> AsyncGenerator[Served]:
    nats = NatsSettings(
        url=secured.server.url,
        nkey_seed_file=secured.seed_file(GATEWAY),
        monitoring_url=secured.server.monitoring_url,
    )
    keys = (
        key_of("alice", tenant, rights=("admin",)),
        key_of("bob", new_id("t"), rights=("admin", "chat")),
        key_of("reader", tenant, rights=("admin",)),
        key_of("carol", tenant, rights=("chat",)),
        key_of("dan", tenant, rights=("chat",)),
    )
    async with gateway_on(secured.server, operator, tenant, nats=nats, keys=keys) as served:
        yield served


async def offering(agent: Bus) -> None:
    """Accept each offer of tools, as agents do."""

    async def offered(message: Message) -> None:
        await agent.publish(message.reply, OfferedTools().model_dump_json().encode())

    await agent.subscribe(subjects.tenant_registry("tool", "offer", subjects.ANY), offered)

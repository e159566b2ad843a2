"""Permissions of the accounts of tool servers, of tenants and of the platform."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import NoResponders, RemoteError, checked_reply
from banksman.bus.messages import Message
from banksman.bus.names import RUNNERS, kv_subject
from banksman.bus.storage.leases import instance_key
from banksman.cli.broker.accounts import Tenant, generate_keys, user_names
from banksman.cli.broker.server import render_config
from banksman.contracts import subjects
from banksman.contracts.calls import CallReply, CallRequest
from banksman.contracts.errors import Conflict, ErrorCode, Forbidden
from banksman.contracts.registry import RegisterTool
from banksman.contracts.tools import ToolDefinition
from banksman.deployment.streams import provision
from banksman.deployment.topology import app_topology
from banksman.deployment.users import AGENT, OPERATOR
from banksman.runs.ports import Placement
from banksman.sdk import Toolbox, ToolServer
from tests.sdk.test_tool_server import Agent, agent_on
from tests.support.fixtures import BUDGET, SecuredNats
from tests.support.nats import NatsServer

TENANTS = (Tenant("acme", tool_servers=("weather",)), Tenant("globex", tool_servers=("weather",)))
PLATFORM = "tool-server-search"


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[SecuredNats]:
    """Two tenants with a tool server of the same id, and a tool server `search` for all tenants."""
    keys = tmp_path_factory.mktemp("keys")
    who: dict[str, Any] = {"tenants": TENANTS, "tool_servers": ("search",)}
    server = NatsServer()
    server.config = render_config(
        generate_keys(keys, user_names(**who)),
        port=server.port,
        http_port=server.http_port,
        store_dir=str(server.directory / "store"),
        budget=BUDGET,
        sync_always=False,
        **who,
    )
    with server:
        secured = SecuredNats(server, keys)
        asyncio.run(_provision(secured))
        yield secured


async def _provision(nats: SecuredNats) -> None:
    async with await nats.connect(OPERATOR) as operator:
        await provision(operator, app_topology(BUDGET))


@pytest.fixture
async def agent(nats: SecuredNats) -> AsyncGenerator[Agent]:
    """A connection with the permissions of an agent."""
    async with await nats.connect(AGENT) as bus, agent_on(bus, "acme") as one:
        yield one


def serving(nats: SecuredNats, user: str, server: str, tool: str) -> ToolServer:
    """A server with one tool, which returns the id of its server."""
    box = Toolbox()

    @box.tool(name=tool, description=f"By {user}.")
    def who() -> str:
        return user

    settings = NatsSettings(url=nats.server.url, nkey_seed_file=nats.seed_file(user), connect_timeout_s=5)
    return ToolServer(server, box, nats=settings, drain_s=0)


async def test_tenants_tool_is_offered_to_and_called_by_that_tenant_only(
    nats: SecuredNats, agent: Agent
) -> None:
    """R114: two tenants have a server and a tool of the same names, isolated from each other."""
    async with (
        serving(nats, "tenant-acme", "weather", "get_weather") as ours,
        serving(nats, "tenant-globex", "weather", "get_weather"),
        serving(nats, PLATFORM, "search", "search_web"),
    ):
        assert agent.offers("acme") == agent.offers("globex") == {"get_weather", "search_web"}
        assert agent.offers("other") == {"search_web"}
        assert {one.tenant for one in await ours.list()} == {"acme", None}
        assert (await agent.call("weather", "get_weather")).content["result"] == "tenant-acme"
        assert (await agent.call("search", "search_web")).content["result"] == PLATFORM


@pytest.mark.parametrize(
    ("server", "tool", "message"),
    [
        ("weather", "search_web", "'search_web' is already registered by server 'search'"),
        ("search", "find", "'search' belongs to a server of the platform"),
        ("weather", "bash", "'bash' is already registered: it is a tool of workspaces"),
    ],
)
async def test_tenant_cannot_register_the_name_of_a_platform_tool(
    nats: SecuredNats, agent: Agent, server: str, tool: str, message: str
) -> None:
    """R44: the error is clear, and the first registration stays."""
    async with serving(nats, PLATFORM, "search", "search_web"):
        before = agent.offers("acme")
        with pytest.raises(RemoteError, match=message) as refused:
            async with serving(nats, "tenant-acme", server, tool):
                pass
        assert agent.offers("acme") == before
    assert refused.value.code == Conflict.code


@pytest.mark.parametrize(
    ("user", "key"),
    [
        ("tenant-acme", instance_key("weather", 7, "globex")),
        ("tenant-acme", instance_key("search", 7, None)),
        ("tenant-acme", "r1"),
        (PLATFORM, instance_key("weather", 7, "acme")),
        (PLATFORM, "r1"),
    ],
)
async def test_account_cannot_write_the_lease_of_another_account(
    nats: SecuredNats, user: str, key: str
) -> None:
    async with await nats.connect(user) as bus:
        with pytest.raises((NoResponders, Forbidden)):
            await bus.request(kv_subject(RUNNERS, key), b"{}", 2)


async def test_platform_tool_server_receives_only_its_own_calls(nats: SecuredNats) -> None:
    async with await nats.connect(PLATFORM) as bus:
        for subject in (subjects.tool_call("r1", "*", "*"), subjects.files("*", "*", "*"), "stored.>"):
            await bus.subscribe(subject, _ignored)
        await bus.ready()

        assert bus.stats.forbidden == 3


async def _ignored(_message: object) -> None:
    raise AssertionError("heard")


def nested(levels: int) -> dict[str, Any]:
    """Return a schema with this many nested subschemas."""
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema that applies `2 ** levels` subschemas to one value."""
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**definitions, f"d{levels}": {"type": "object"}}, "$ref": "#/$defs/d0"}


NAMED = {"name": "x", "description": "x", "server": "search"}


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({**NAMED, "server": None}, "definition.server"),
        ({**NAMED, "description": " "}, "definition.description"),
        ({**NAMED, "input_schema": {"type": "array"}}, "input_schema.type"),
        ({**NAMED, "input_schema": {"type": "object", "properties": 3}}, "input_schema.properties"),
        (
            {**NAMED, "input_schema": {"properties": {"b": {"pattern": "("}}}},
            "input_schema.properties.b.pattern",
        ),
        ({**NAMED, "input_schema": {"$ref": "http://127.0.0.1/x"}}, "input_schema.$ref"),
        ({**NAMED, "input_schema": {"title": "x" * 70_000}}, "input_schema"),
        ({**NAMED, "input_schema": nested(70)}, "input_schema"),
        ({**NAMED, "input_schema": doubling(16)}, "input_schema"),
        (
            {**NAMED, "input_schema": {"properties": {"b": {"pattern": "^(?!a)"}}}},
            "input_schema.properties.b.pattern",
        ),
        ({**NAMED, "input_schema": {"properties": {"b": {"$id": "x"}}}}, "input_schema.properties.b.$id"),
        ({**NAMED, "input_schema": {"$dynamicRef": "#"}}, "input_schema.$dynamicRef"),
    ],
)
async def test_invalid_tool_definition_is_refused_by_field(
    nats: SecuredNats, agent: Agent, definition: dict[str, Any], field: str
) -> None:
    """R51: for definitions of any client in any language."""
    registration = RegisterTool(definition=ToolDefinition.model_validate(definition))
    async with await nats.connect(PLATFORM) as bus:
        with pytest.raises(RemoteError) as refused:
            await register(bus, registration.model_dump_json().encode())

    assert refused.value.code == ErrorCode.BAD_REQUEST
    assert refused.value.frame.details is not None
    assert refused.value.frame.details["field"] == field


async def register(bus: Bus, body: bytes) -> bytes:
    return checked_reply(await bus.request(subjects.registry("tool", "register"), body, 5))


async def test_a_stored_start_replaces_the_reply_to_a_call(nats: SecuredNats, agent: Agent) -> None:
    """A tool server of another author may never reply; the owner does not wait for its reply."""
    loop = asyncio.get_running_loop()
    shown: asyncio.Future[None] = loop.create_future()
    requested: list[CallRequest] = []

    async def start(message: Message) -> None:
        requested.append(CallRequest.model_validate_json(message.data))
        shown.set_result(None)

    placement = Placement("weather", 1)
    request = agent.request("weather", "get_weather", placement)
    async with await nats.connect("tenant-acme") as server:
        await server.subscribe(subjects.tool_call("weather", "acme", subjects.ANY), start)
        await server.ready()
        assert await agent.placements.call(placement, request, shown) == CallReply(answer="accepted")
    assert requested[0].start_suffices


async def test_server_replies_if_the_start_of_a_call_cannot_be_stored_soon(nats: SecuredNats) -> None:
    """All agents are away when it starts. Once one is back, the call runs, once."""
    ran = 0
    box = Toolbox()

    @box.tool(name="count", description="x")
    def count() -> int:
        nonlocal ran
        ran += 1
        return ran

    settings = NatsSettings(
        url=nats.server.url, nkey_seed_file=nats.seed_file("tenant-acme"), connect_timeout_s=5
    )
    async with await nats.connect(AGENT) as bus, agent_on(bus, "acme") as agent:
        async with ToolServer("weather", box, nats=settings, drain_s=0):
            placement = await agent.place("weather")
            request = agent.request("weather", "count", placement)
            await agent.relay.__aexit__(None, None, None)
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            assert await agent.placements.call(placement, request, never) == CallReply(answer="accepted")
            assert (ran, agent.results) == (0, {})
            await agent.relay.__aenter__()
            assert (await agent.result(request)).content["result"] == 1
    assert ran == 1

"""Secrets of a tenant reach its own tool servers with a call, and nothing that is stored."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator

import pytest

from banksman.bus import jetstream
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.names import RESULTS, TENANT_SECRETS, kv_stream
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.slots import CallSlots
from banksman.contracts.calls import CallFinished, CallReply
from banksman.contracts.ids import digest, new_id
from banksman.contracts.tools import ToolResult
from banksman.deployment.users import AGENT, OPERATOR
from banksman.gateway.identity.operations import SecretStore
from banksman.gateway.operation.caller import Caller
from banksman.sdk import Toolbox, ToolContext, ToolFailed, ToolServer
from tests.sdk.test_tool_accounts import PLATFORM
from tests.sdk.test_tool_accounts import nats as nats
from tests.sdk.test_tool_server import Agent, agent_on
from tests.support.fixtures import SecuredNats

KEY = b"k" * 32
VALUE = 'a "pass" of acme only'
ADMIN = Caller("acme", "alice")


@pytest.fixture
async def operator(nats: SecuredNats) -> AsyncGenerator[Bus]:
    async with await nats.connect(OPERATOR) as bus:
        yield bus


@pytest.fixture
async def secrets(operator: Bus) -> AsyncGenerator[SecretStore]:
    """The secrets of acme: `API_TOKEN`."""
    async with BrokerClock(operator) as clock:
        store = SecretStore(operator, SecretBox(KEY), clock)
        await store.set(ADMIN, "API_TOKEN", VALUE)
        yield store


@pytest.fixture
async def agent(nats: SecuredNats, secrets: SecretStore) -> AsyncGenerator[Agent]:
    async with await nats.connect(AGENT) as bus, agent_on(bus, "acme", KEY) as one:
        yield one


def serving(nats: SecuredNats, user: str, server: str, box: Toolbox) -> ToolServer:
    settings = NatsSettings(url=nats.server.url, nkey_seed_file=nats.seed_file(user), connect_timeout_s=5)
    return ToolServer(server, box, nats=settings, drain_s=0)


async def stored(bus: Bus, stream: str, below: str) -> str:
    return "\n".join([message.data.decode() async for message in jetstream.read(bus, stream, below)])


async def test_a_declared_secret_reaches_the_tenants_own_tool_and_neither_its_result_nor_an_error_shows_it(
    nats: SecuredNats, agent: Agent, operator: Bus
) -> None:
    """The value is encrypted where it is stored."""
    box = Toolbox()

    @box.tool(description="x", secrets=("API_TOKEN",))
    def call_api(context: ToolContext) -> dict[str, str]:
        value = context.secret("API_TOKEN")
        encoded = base64.b64encode(value.encode()).decode()
        return {"digest": digest(value.encode()), "echo": f"<{value}>", "encoded": encoded}

    @box.tool(description="x", secrets=("API_TOKEN",))
    def fail(context: ToolContext) -> str:
        raise ToolFailed(f"401 for {context.secret('API_TOKEN')}")

    @box.tool(description="x")
    def undeclared(context: ToolContext) -> dict[str, int]:
        return {"secrets": len(context.secrets)}

    async with serving(nats, "tenant-acme", "weather", box):
        called = await agent.call("weather", "call_api")
        failed = await agent.call("weather", "fail")
        without = await agent.call("weather", "undeclared")

    assert called.content["digest"] == digest(VALUE.encode())
    assert (called.content["echo"], called.content["encoded"]) == ("<«hidden»>", "«hidden»")
    assert failed.content["error"] == "401 for «hidden»"
    assert without.content["secrets"] == 0
    at_rest = await stored(operator, kv_stream(TENANT_SECRETS), f"$KV.{TENANT_SECRETS}.acme.>")
    assert '"API_TOKEN"' in at_rest
    assert "of acme" not in at_rest + await stored(operator, RESULTS, "tool.result.acme.*")


async def test_the_result_of_a_tool_server_in_any_language_has_no_secret_of_its_tenant(
    nats: SecuredNats, agent: Agent
) -> None:
    """An agent removes it in values and keys before it stores the result. Other tenants' words stay."""
    content = {"success": True, "lines": [f"token={VALUE}"], VALUE: 1}
    result = ToolResult(tool_call_id="k", content=dict(content), runner="weather")
    attempt = new_id("k")
    finished = CallFinished(conversation_id="c1", attempt=attempt, result=result)
    for tenant in ("acme", "globex"):
        async with await nats.connect(f"tenant-{tenant}") as bus:
            await CallSlots(bus, may_read=False).store_result(tenant, finished)

    ours = (await CallSlots(agent.bus).read("acme", attempt)).finished
    theirs = (await CallSlots(agent.bus).read("globex", attempt)).finished
    assert ours is not None and theirs is not None
    assert ours.result.content == {"success": True, "lines": ["token=«hidden»"], "«hidden»": 1}
    assert theirs.result.content == content


async def test_a_tool_server_of_the_platform_receives_no_secret(nats: SecuredNats, agent: Agent) -> None:
    box = Toolbox()

    @box.tool(description="x", secrets=("API_TOKEN",))
    def find(context: ToolContext) -> str:
        return context.secret("API_TOKEN")

    async with serving(nats, PLATFORM, "search", box):
        result = await agent.call("search", "find")

    assert "no secret 'API_TOKEN'" in str(result.content["error"])


async def test_a_call_whose_secret_is_missing_or_unreadable_is_refused_with_its_name(
    nats: SecuredNats, agent: Agent, secrets: SecretStore, operator: Bus
) -> None:
    box = Toolbox()

    @box.tool(description="x", secrets=("API_TOKEN",))
    def read() -> str:
        return "ran"

    async def refusal() -> str | None:
        placement = await agent.place("weather")
        reply = await agent.placements.call(placement, agent.request("weather", "read", placement))
        assert isinstance(reply, CallReply) and reply.answer == "refused", reply
        return reply.reason

    async with serving(nats, "tenant-acme", "weather", box), BrokerClock(operator) as clock:
        await SecretStore(operator, SecretBox(b"other" * 8), clock).set(ADMIN, "API_TOKEN", VALUE)
        unreadable = await refusal()
        await secrets.delete_secret("API_TOKEN", ADMIN)
        missing = await refusal()

    assert unreadable is not None and "'API_TOKEN' was encrypted with another signing key" in unreadable
    assert missing is not None and "'API_TOKEN' is not set" in missing
    assert VALUE not in json.dumps([unreadable, missing])


async def test_a_secret_for_named_servers_reaches_no_other_server(
    nats: SecuredNats, agent: Agent, secrets: SecretStore
) -> None:
    box = Toolbox()

    @box.tool(description="x", secrets=("API_TOKEN",))
    def read(context: ToolContext) -> int:
        return len(context.secret("API_TOKEN"))

    async with serving(nats, "tenant-acme", "weather", box):
        # `mcp:weather` is the MCP server of that id, and not the tool server.
        await secrets.set(ADMIN, "API_TOKEN", VALUE, ("clock", "mcp:weather"))
        placement = await agent.place("weather")
        reply = await agent.placements.call(placement, agent.request("weather", "read", placement))
        await secrets.set(ADMIN, "API_TOKEN", VALUE, ("weather",))
        allowed = await agent.call("weather", "read")

    assert isinstance(reply, CallReply) and reply.answer == "refused", reply
    assert "'API_TOKEN' is not for the server 'weather'" in str(reply.reason)
    assert str(len(VALUE)) in str(allowed.content)

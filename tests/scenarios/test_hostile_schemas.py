"""A tool server cannot stop agents or gateways by the schema of a tool (R53)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from banksman.bus.connection import Bus
from banksman.bus.names import TOOLS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.ids import new_id
from banksman.contracts.registry import ToolRegistration
from banksman.sdk import Toolbox, ToolServer
from tests.scenarios.conftest import Play
from tests.scenarios.test_tool_registry import call, local, results, when
from tests.support.client import Client
from tests.support.deep_values import deep
from tests.support.scripted_models import ScriptedReply
from tests.support.system import System

PROMPTLY_S = 2.0
"""Seconds for a request that needs milliseconds, on a loaded machine; the check would take years."""


@asynccontextmanager
async def hostile_tool(system: System, operator: Bus, **schema: Any) -> AsyncGenerator[str]:
    """Serve a tool with a schema that an earlier version accepted; yield its name."""
    box, name = Toolbox(), new_id("fine-")

    @box.tool(name=name, requires_approval=True)
    def look() -> str:
        """Look something up."""
        return "found"

    async with ToolServer(new_id("search-"), box, nats=local(system)) as server:
        bucket = Bucket(operator, TOOLS, ToolRegistration)
        [entry] = [one async for one in bucket.entries() if one.value.definition.name == name]
        hostile = new_id("hostile-")
        changes = {"name": hostile, "input_schema": schema}
        definition = entry.value.definition.model_copy(update=changes)
        changed = entry.value.model_copy(update={"definition": definition})
        # The server renews its own registrations only.
        assert await bucket.create(entry.key.replace(name, hostile), changed) is not None

        async def is_listed() -> bool:
            return hostile in {one.definition.name for one in await server.list()}

        await when(is_listed)
        yield hostile


def doubling() -> dict[str, Any]:
    """Return a schema that takes 2 ** n steps for invalid arguments of depth n, each time another one.

    A schema that took too long is refused for a minute, even in the next test.
    """
    child = {"properties": {"x": {"$ref": "#/$defs/node"}}, "required": ["x"]}
    both = [child, {**child, "minProperties": 1}]
    return {
        "title": new_id("t"),
        "type": "object",
        "$defs": {"node": {"anyOf": both}},
        "properties": {"x": {"$ref": "#/$defs/node"}},
    }


async def test_endless_schema_holds_up_no_agent(
    system: System, operator: Bus, client: Client, play: Play
) -> None:
    async with hostile_tool(system, operator, **doubling()) as name:
        script = play(
            ScriptedReply(tool_calls=(call(name, **deep(60)),)),
            ScriptedReply(text="Odd."),
            ScriptedReply(text="Fine."),
        )
        conversation = await client.create(script)
        outcome = await client.run(conversation, "go")

    assert outcome["content"] == "Odd."
    [result] = results(client, conversation)
    assert result["error_kind"] == "invalid_arguments"
    assert "schema cannot be applied" in result["content"]["error"]


async def test_edited_arguments_for_an_endless_schema_hold_up_no_gateway(
    system: System, operator: Bus, client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    # Only invalid arguments take long: the model's arguments are valid, so the run waits for its approval.
    async with hostile_tool(system, operator, **doubling()) as name:
        conversation = await client.create(
            play(ScriptedReply(tool_calls=(call(name, ok=1),)), ScriptedReply(text="Fine."))
        )
        run_id = await client.chat(conversation, "go")
        approval_request = await client.approval_request(run_id)
        edit = {
            "tool_call_id": approval_request["items"][0]["tool_call_id"],
            "decision": "approve",
            "arguments": deep(60),
        }
        deciding = asyncio.create_task(
            client.request("approval.reply", approval_id=approval_request["approval_id"], decisions=[edit])
        )
        await asyncio.sleep(0)
        for _ in range(20):
            async with asyncio.timeout(PROMPTLY_S):
                assert (await http.get("/healthz")).status_code == 200
        refused = await deciding
        assert refused["type"] == "error"
        assert "cannot be applied" in refused["message"]
        await client.approve(run_id)
        await client.finished(run_id)


async def test_an_unusable_schema_breaks_no_run(
    system: System, operator: Bus, client: Client, play: Play
) -> None:
    """R53: for any stored schema, the model receives an error and continues."""
    schema = {"type": "object", "properties": {"up": {"$ref": "#/$defs/missing"}}}
    async with hostile_tool(system, operator, **schema) as name:
        conversation = await client.create(
            play(ScriptedReply(tool_calls=(call(name, up="x"),)), ScriptedReply(text="Odd."))
        )
        outcome = await client.run(conversation, "go")

    assert outcome["content"] == "Odd."
    [result] = results(client, conversation)
    assert result["error_kind"] == "invalid_arguments"
    assert "schema cannot be applied" in result["content"]["error"]

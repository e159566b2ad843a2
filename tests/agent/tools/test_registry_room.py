"""One tenant registers large tools without end."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from banksman.agent.tools import ToolRegistry
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import TOOLS, api, kv_stream
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.watch import BucketView
from banksman.contracts.errors import Overloaded
from banksman.contracts.ids import new_id
from banksman.contracts.registry import ToolRegistration
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.quotas.stored import LEAST
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker

FREE_BYTES = 96 * 1024


def tool(number: int) -> ToolDefinition:
    schema: JsonObject = {"type": "object", "description": "x" * 3_000}
    return ToolDefinition(name=f"t{number}", description="A tool.", input_schema=schema, server="weather")


async def test_tools_of_a_tenant_leave_room_for_others(bus: Bus, tenant: str) -> None:
    """Large tools reach the limit of bytes before the limit of the number of tools."""
    info = await call(bus, api("STREAM.INFO", kv_stream(TOOLS)))
    limited = {**info["config"], "max_bytes": info["state"]["bytes"] + FREE_BYTES}
    await call(bus, api("STREAM.UPDATE", kv_stream(TOOLS)), limited)
    async with AsyncExitStack() as stack:
        clock = await stack.enter_async_context(BrokerClock(bus))
        registered = await stack.enter_async_context(BucketView(Bucket(bus, TOOLS, ToolRegistration)))
        placements = await stack.enter_async_context(Placements(bus, clock))
        schemas = await stack.enter_async_context(SchemaChecker())
        registry = ToolRegistry(bus, clock, registered, placements, schemas)
        stack.push_async_callback(call, bus, api("STREAM.UPDATE", kv_stream(TOOLS)), info["config"])
        stored = 0
        with pytest.raises(Overloaded, match="storage_full: no room for further tools"):
            for number in range(2 * LEAST):
                await registry.register(tenant, tool(number))
                stored += 1
        assert stored >= LEAST
        await registry.register(tenant, tool(0))
        await registry.register(new_id("t"), tool(0))

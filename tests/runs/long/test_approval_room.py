"""Approval requests of one tenant leave room to those of others."""

from __future__ import annotations

from dataclasses import replace

from banksman.bus.approval_slots import ApprovalSlots
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import APPROVALS, api
from banksman.bus.outcomes import Done
from banksman.contracts.events import ApprovalRequested, ToolCallCompleted
from banksman.contracts.ids import new_id
from banksman.deployment.tenant_room import LEAST
from banksman.model_server import Reply, ToolCall
from tests.bus.builders import make_approval_request
from tests.runs.long.conftest import Agent
from tests.support.model_server import ModelServer

STREAM_BYTES = 4 * 1024**2
LARGE = ToolCall(name="write_file", arguments={"path": "big.txt", "content": "x" * 300_000})


async def test_tenant_whose_requests_fill_its_part_gets_an_error_for_further_calls(
    agent: Agent, server: ModelServer, bus: Bus
) -> None:
    """The run continues with the error, so the model and the user read the reason; others can request."""
    server.play("large", [Reply(tool_calls=(LARGE,)), Reply(text="Too much.")], by="count")
    server.play("other", [Reply(tool_calls=(LARGE,))], by="count")
    info = await call(bus, api("STREAM.INFO", APPROVALS))
    await call(bus, api("STREAM.UPDATE", APPROVALS), {**info["config"], "max_bytes": STREAM_BYTES})
    try:
        for _ in range(LEAST):
            await ApprovalSlots(bus).store_request(make_approval_request(agent.tenant, new_id("a")))
        outcome = await agent.run("Write it.", "openai:scripted/large")
        (completed,) = await agent.events(ToolCallCompleted)
        assert (outcome.status, outcome.content) == ("completed", "Too much.")
        assert "storage_full: no room for further approval requests" in str(completed.result.content)
        assert not await agent.events(ApprovalRequested)
        other = replace(agent, tenant=new_id("t"), conversation=new_id("c"))
        assert await other.worker.on_work(other.start("Write it.", "openai:scripted/other")) == Done()
        assert await other.events(ApprovalRequested)
    finally:
        await call(bus, api("STREAM.UPDATE", APPROVALS), info["config"])

"""The stored data of one tenant leaves room for other tenants."""

from __future__ import annotations

from dataclasses import replace

from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import APPROVALS, EVENTS, api
from banksman.bus.queues.handling import Done
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.tail import last_sequence
from banksman.contracts.approvals import ApprovalRequested
from banksman.contracts.events import ToolCallCompleted
from banksman.contracts.ids import new_id
from banksman.contracts.work import DeleteConversation
from banksman.quotas.stored import LEAST
from tests.bus.builders import make_approval_request
from tests.runs.long.conftest import Agent
from tests.support.model_server import ModelServer
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply

STREAM_BYTES = 4 * 1024**2
LARGE = ScriptedCall(name="write_file", arguments={"path": "big.txt", "content": "x" * 300_000})


async def test_tenant_whose_requests_fill_its_share_gets_an_error_for_further_calls(
    agent: Agent, server: ModelServer, bus: Bus
) -> None:
    """The run continues with the error, so the model and the user read the reason; others can call."""
    server.play("large", [ScriptedReply(tool_calls=(LARGE,)), ScriptedReply(text="Too much.")], by="count")
    server.play("other", [ScriptedReply(tool_calls=(LARGE,))], by="count")
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


async def test_deleting_a_conversation_frees_its_bytes(agent: Agent, server: ModelServer, bus: Bus) -> None:
    server.play("long", [ScriptedReply(text="x" * 50_000)])
    usage = agent.worker.model_step.tenants.usage
    await agent.run("Write.", "openai:scripted/long")
    consumed = await usage.consumed(agent.tenant, await last_sequence(bus, EVENTS))
    assert consumed.stored_bytes > 50_000
    await agent.signal(DeleteConversation(tenant=agent.tenant, conversation_id=agent.conversation, by="ann"))
    await eventually(lambda: has_at_most(usage, agent.tenant, 2_000))


async def has_at_most(usage: UsageLedger, tenant: str, most: int) -> bool:
    return (await usage.consumed(tenant, 0)).stored_bytes <= most

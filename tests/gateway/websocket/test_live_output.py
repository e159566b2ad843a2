"""Live output that the gateway does not forward."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY
from tests.gateway.conftest import SIGNING_KEY, Agent, Served

from banksman.bus.secrets import output_ticket
from banksman.contracts import subjects
from banksman.contracts.calls import CallProgress


def _dropped() -> float:
    return REGISTRY.get_sample_value("banksman_foreign_live_output_total") or 0


async def test_live_output_without_the_ticket_of_its_call_is_dropped_and_counted(
    gateway: Served, agent: Agent, tenant: str
) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create(detail="full")
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        ids: Any = {"conversation_id": conversation, "run_id": start.run_id, "tool_call_id": "k1"}
        first = CallProgress(kind="output", runner="r1", **ids)
        ticket = output_ticket(SIGNING_KEY.encode(), tenant, first, "r1")
        before = _dropped()
        for text, runner, code in (
            ("missing", "r1", None),
            ("of another runner", "r2", ticket),
            ("ä", "r1", "ä"),
            ("genuine", "r1", ticket),
        ):
            changes = {"stream": "stdout", "text": text, "runner": runner, "ticket": code}
            data = first.model_copy(update=changes).model_dump_json().encode()
            await gateway.bus.publish(subjects.tool_progress(tenant, conversation), data)
        shown = await socket.until_type("tool_call.output")
    assert shown["data"]["text"] == "genuine"
    assert _dropped() - before == 3

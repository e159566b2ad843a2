"""The open approval requests of a tenant, followed over the websocket."""

from __future__ import annotations

from datetime import datetime

from tests.gateway.conftest import Agent, Served


async def test_a_page_receives_requests_and_decisions_of_every_conversation(
    gateway: Served, agent: Agent
) -> None:
    """R13: without a subscription to the conversation, and with all fields that the inbox shows."""
    async with gateway.socket() as watching, gateway.socket() as working, gateway.http as http:
        assert set(watching.welcome["rights"]) >= {"chat", "approve"}
        assert (await watching.request("approvals.subscribe"))["type"] == "ack"
        conversation = await working.create(title="The load of the crane")
        await working.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        request = await agent.request_approval(start)

        await watching.until_type("approvals.changed")
        (pending,) = (await http.get("/context/approvals")).json()["items"]
        await working.request("approval.reply", approval_id=request.approval_id, all="approve")
        await watching.until_type("approvals.changed")
        left = (await http.get("/context/approvals")).json()["items"]
    assert (pending["title"], pending["requested_by"]) == ("The load of the crane", "local")
    assert datetime.fromisoformat(pending["requested_at"]).tzinfo is not None
    assert left == []

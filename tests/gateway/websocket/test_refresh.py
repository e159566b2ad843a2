"""Replace the token of an open connection, as a client whose tokens expire does."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import TOKENS, Agent, Served
from websockets.exceptions import ConnectionClosed


async def test_a_refreshed_connection_acts_with_the_new_token(guarded: Served, agent: Agent) -> None:
    """Interfaces, section 3: `auth.refresh`. The key `reader` may not decide."""
    async with guarded.socket("alice") as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        refreshed = await socket.request("auth.refresh", token=TOKENS["reader"])
        refused = await socket.request("approval.reply", approval_id=request.approval_id, all="approve")
        await socket.request("auth.refresh", token=TOKENS["alice"])
        decided = await socket.request("approval.reply", approval_id=request.approval_id, all="approve")
    assert (refreshed["type"], refused["code"], decided["outcome"]) == ("ack", "forbidden", "approved")


@pytest.mark.parametrize(("token", "code"), [("no token", 4401), (TOKENS["bob"], 4403)])
async def test_a_wrong_token_and_one_of_another_tenant_close_the_connection(
    guarded: Served, token: str, code: int
) -> None:
    async with guarded.socket("alice") as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.request("auth.refresh", token=token)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == code

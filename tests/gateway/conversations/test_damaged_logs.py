"""P22: a damaged log is refused with the reason and the remedy, on every interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
import pytest
from tests.gateway.conftest import Agent, Served
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.jetstream import delete_message
from banksman.bus.messages import Message
from banksman.bus.names import DAMAGED, EVENTS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.administration import DamagedLog
from banksman.contracts.events import ConversationUpdated
from banksman.contracts.ids import new_id


@dataclass(frozen=True, slots=True)
class Conversation:
    gateway: Served
    http: httpx.AsyncClient
    agent: Agent
    id: str

    @property
    def path(self) -> str:
        return f"/context/conversations/{self.id}"


@pytest.fixture
async def conversation(gateway: Served, agent: Agent) -> AsyncGenerator[Conversation]:
    """A conversation with a run, and at least three commits."""
    async with gateway.http as http:
        created = await http.post("/context/conversations", json={})
        found = Conversation(gateway, http, agent, created.json()["conversation_id"])
        await http.post(f"{found.path}/runs", json={"content": "hi"})
        start = await agent.started(found.id)
        await agent.begin(start)
        await agent.finish(start)
        await agent.commit(found.id, None, ConversationUpdated(title="a"), owned=False)
        yield found


Request = Callable[[Conversation], Awaitable[str]]
"""Makes a request, and returns the text of the response."""


async def over_http(conversation: Conversation) -> str:
    response = await conversation.http.post(f"{conversation.path}/runs", json={"content": "on?"})
    assert response.status_code == 409, response.text
    return response.text


async def over_chat(conversation: Conversation) -> str:
    body = {"conversation_id": conversation.id, "content": "on?"}
    return (await conversation.http.post("/context/chat", json=body)).text


async def over_a_websocket(conversation: Conversation) -> str:
    async with conversation.gateway.socket() as socket:
        return json.dumps(await socket.request("chat.send", conversation_id=conversation.id, content="on?"))


async def over_nats(conversation: Conversation) -> str:
    bus, tenant = conversation.agent.bus, conversation.agent.tenant
    subject = subjects.api(tenant, "chat", "send", conversation.id)
    return (await bus.request(subject, json.dumps({"content": "on?"}).encode(), WAIT_TIMEOUT_S)).decode()


async def over_agui(conversation: Conversation) -> str:
    message = {"id": new_id("u"), "role": "user", "content": "on?"}
    run = {"threadId": conversation.id, "runId": "r1", "messages": [message], "tools": [], "context": []}
    return (await conversation.http.post("/agui", json=run)).text


async def over_a2a(conversation: Conversation) -> str:
    parts = [{"text": "on?"}]
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": parts, "contextId": conversation.id}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    return (await conversation.http.post("/a2a", json=call, headers={"a2a-version": "1.0"})).text


async def events_over_http(conversation: Conversation) -> str:
    return (await conversation.http.get(f"{conversation.path}/events")).text


async def state_over_http(conversation: Conversation) -> str:
    return (await conversation.http.get(conversation.path)).text


async def runs_over_http(conversation: Conversation) -> str:
    return (await conversation.http.get(f"{conversation.path}/runs")).text


async def events_over_a_websocket(conversation: Conversation) -> str:
    async with conversation.gateway.socket() as socket:
        reply = await socket.request("subscribe", conversation_id=conversation.id, after_seq=0)
        return json.dumps(reply if reply["type"] == "error" else await socket.until_type("error"))


async def events_over_nats(conversation: Conversation) -> str:
    bus, frames = conversation.agent.bus, asyncio.Queue[bytes]()

    async def received(message: Message) -> None:
        frames.put_nowait(message.data)

    inbox = new_id("inbox")
    await bus.subscribe(inbox, received)
    subject = subjects.api(conversation.agent.tenant, "replay", conversation.id)
    await bus.nc.publish(subject, b"{}", reply=inbox)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while '"type":"error"' not in (frame := (await frames.get()).decode()):
            assert frame, "the replay ended without a reason"
    return frame


SENDS = [over_http, over_chat, over_a_websocket, over_nats, over_agui, over_a2a]
EVENTS_READ = [events_over_http, events_over_a_websocket, events_over_nats]
READS = [*EVENTS_READ, state_over_http, runs_over_http]


@pytest.mark.parametrize("request_", [*SENDS, *READS], ids=lambda one: one.__name__)
async def test_a_log_with_a_gap_is_refused_with_the_remedy(
    conversation: Conversation, request_: Request
) -> None:
    """The gap is not reported yet."""
    bus, tenant = conversation.agent.bus, conversation.agent.tenant
    _, second, *_ = await EventLog(bus).read(tenant, conversation.id)
    assert await delete_message(bus, EVENTS, second.stream_seq)
    text = await request_(conversation)
    assert f"the log of {conversation.id} is damaged" in text, text
    assert "is missing" in text and "banksman check" in text


@pytest.mark.parametrize(
    "request_",
    [*SENDS, *EVENTS_READ],
    ids=lambda one: one.__name__,
)
async def test_a_log_that_lost_its_end_is_named_with_the_remedy(
    conversation: Conversation, request_: Request
) -> None:
    """Agents have found it."""
    bus, tenant = conversation.agent.bus, conversation.agent.tenant
    bucket, key = Bucket(bus, DAMAGED, DamagedLog), f"{tenant}.{conversation.id}"
    problem = "its end is lost, message 7"
    report = DamagedLog(
        tenant=tenant, conversation_id=conversation.id, problem=problem, found_at=datetime.now(UTC)
    )
    await bucket.put(key, report)
    try:

        async def known() -> bool:
            return problem in await events_over_http(conversation)

        await eventually(known, WAIT_TIMEOUT_S)
        text = await request_(conversation)
        assert f"the log of {conversation.id} is damaged: {problem}" in text, text
        assert "banksman check" in text
    finally:
        await bucket.delete(key)

"""Unused conversations are deleted after the days for which their tenant keeps them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from tests.bus.builders import commit
from tests.gateway.conftest import Agent, GatewayFactory, Served, gateway_on
from tests.support.nats import Broker
from tests.support.polling import eventually

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message, purge_subject
from banksman.bus.names import RUNS
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.assistants import ConversationSettings
from banksman.contracts.events import ConversationUpdated, Event
from banksman.contracts.ids import new_id
from banksman.contracts.work import DeleteConversation, StartRun
from banksman.gateway.conversations.changes import ConversationChanges
from banksman.gateway.conversations.conversations import Conversations, new_record
from banksman.gateway.conversations.views import Views
from banksman.gateway.housekeeping.unused import Retention
from banksman.gateway.operation.caller import Caller
from banksman.runtime.tenants import TenantLimits, TenantSettings

PATH = "/context/conversations"
LATER_DAYS = 8
WEEK = TenantLimits(retention_days=7)


class LaterClock:
    """The time in eight days."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=LATER_DAYS)

    def new_id(self, prefix: str) -> str:
        return new_id(prefix)


def retention(gateway: Served, default: TenantLimits | None = None, **named: TenantLimits) -> Retention:
    """The retention of a gateway, as it acts in eight days."""
    services = gateway.running.connections.context.dispatcher.services
    tenants = TenantSettings(default=default or TenantLimits(), named=named)
    return Retention(
        gateway.bus,
        services[Conversations],
        services[Views],
        services[ConversationChanges],
        LaterClock(),
        tenants,
        pause_s=0,
    )


async def create(http: httpx.AsyncClient) -> str:
    response = await http.post(PATH, json={"title": "Unused"})
    assert response.status_code == 201, response.text
    return response.json()["conversation_id"]


async def mark(http: httpx.AsyncClient, conversation_id: str, **marks: bool) -> str:
    assert (await http.patch(f"{PATH}/{conversation_id}", json=marks)).is_success
    return conversation_id


async def queued(http: httpx.AsyncClient, agent: Agent) -> StartRun:
    """A run that no agent has begun."""
    response = await http.post("/v1/chat", json={"content": "Hello."})
    assert response.status_code == 202, response.text
    return await agent.started(response.json()["conversation_id"])


async def begun(http: httpx.AsyncClient, agent: Agent) -> StartRun:
    """A run that is in the log only."""
    start = await queued(http, agent)
    await agent.begin(start)
    await purge_subject(agent.bus, RUNS, subjects.run_work(agent.tenant, start.conversation_id))
    return start


async def left(http: httpx.AsyncClient) -> set[str]:
    """The conversations that the tenant still has."""
    found: set[str] = set()
    for archived in ("false", "true"):
        page = (await http.get(PATH, params={"archived": archived})).json()
        found |= {one["conversation_id"] for one in page["items"]}
    return found


async def requested(bus: Bus, tenant: str, conversation_id: str) -> DeleteConversation | None:
    """The message that requests the deletion of a conversation from agents."""
    message = await last_message(bus, RUNS, subjects.run_signal(tenant, conversation_id))
    return message and DeleteConversation.model_validate_json(message.data)


def deleted_in_total() -> float:
    return REGISTRY.get_sample_value("banksman_expired_conversations_total") or 0.0


async def test_unused_conversations_are_deleted_as_their_user_would(
    gateway: Served, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    before = deleted_in_total()
    async with gateway.http as http:
        unused = await create(http)
        archived = await mark(http, await create(http), archived=True)
        ended = await begun(http, agent)
        await agent.finish(ended)
        with caplog.at_level(logging.INFO):
            await retention(gateway, **{gateway.tenant: WEEK}).walk()
        assert await left(http) == set()
    expired = (unused, archived, ended.conversation_id)
    signals = [await requested(gateway.bus, gateway.tenant, one) for one in expired]
    assert [signal and signal.by for signal in signals] == ["retention"] * 3
    lines = [one for one in caplog.records if one.getMessage() == "an unused conversation is deleted"]
    assert [one.__dict__["conversation_id"] for one in lines] == list(expired)
    assert deleted_in_total() - before == 3


async def test_pinned_conversations_and_those_with_an_open_run_are_kept(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.http as http:
        pinned = await mark(http, await create(http), pinned=True)
        waiting = await queued(http, agent)
        running = await begun(http, agent)
        parked = await begun(http, agent)
        await agent.request_approval(parked)
        unused = await create(http)
        await retention(gateway, **{gateway.tenant: WEEK}).walk()
        runs = {run.conversation_id for run in (waiting, running, parked)}
        assert await left(http) == {pinned, *runs}
    assert await requested(gateway.bus, gateway.tenant, pinned) is None
    assert await requested(gateway.bus, gateway.tenant, unused) is not None


async def test_an_event_in_the_log_is_activity(gateway: Served) -> None:
    later = datetime.now(UTC) + timedelta(days=LATER_DAYS - 6)
    async with gateway.http as http:
        used, unused = await create(http), await create(http)
        event = commit(1).model_copy(update={"ts": later})
        await EventLog(gateway.bus).append(gateway.tenant, used, event, after=0)
        await retention(gateway, **{gateway.tenant: WEEK}).walk()
        assert await left(http) == {used}
    assert await requested(gateway.bus, gateway.tenant, unused) is not None


async def test_an_interrupted_deletion_continues(gateway: Served) -> None:
    """The agent has written its tombstone just now, and the index still has the conversation."""
    now = LaterClock().now()
    deleted = Event(seq=1, ts=now, data=ConversationUpdated(status="deleted"))
    tombstone = commit(1).model_copy(update={"ts": now, "events": (deleted,)})
    async with gateway.http as http:
        conversation_id = await create(http)
        await EventLog(gateway.bus).append(gateway.tenant, conversation_id, tombstone, after=0)
        await retention(gateway, **{gateway.tenant: WEEK}).walk()
        assert await left(http) == set()


async def test_each_tenant_has_its_own_retention_days(own_nats: Broker, own_bus: Bus) -> None:
    """The test has its own server, because a default applies to the conversations of all tenants.

    The last messages are older than the records, which were written eight days ago: a mark such as a pin
    rewrites a record.
    """
    long_ago = datetime.now(UTC) - timedelta(days=30)
    nine, never = TenantLimits(retention_days=9), TenantLimits(retention_days=0)
    async with gateway_on(own_nats, own_bus, "plain") as gateway:
        conversations = gateway.running.connections.context.dispatcher.services[Conversations]
        for tenant in ("plain", "never", "short", "long"):
            record = new_record("c1", "", "default", ConversationSettings(), by="ada", now=long_ago)
            await conversations.create(tenant, record)

        async def kept(default: TenantLimits | None = None, **named: TenantLimits) -> list[str]:
            await retention(gateway, default, **named).walk()
            tenants = ("plain", "never", "short", "long")
            return [tenant for tenant in tenants if (await conversations.list(Caller(tenant, "ada"))).items]

        assert await kept() == ["plain", "never", "short", "long"]
        assert await kept(plain=nine) == ["plain", "never", "short", "long"]
        assert await kept(nine, short=WEEK) == ["plain", "never", "long"]
        assert await kept(WEEK, never=never, long=nine) == ["never", "long"]


async def test_a_gateway_deletes_while_it_runs(start_gateway: GatewayFactory, tenant: str) -> None:
    def settings(days: float) -> dict[str, Any]:
        return {"named": {tenant: {"retention_days": days}}}

    created = datetime.now(UTC)
    async with start_gateway(tenants=settings(1)) as keeping, keeping.http as http:
        conversation_id = await create(http)
        assert await left(http) == {conversation_id}
    await eventually(lambda: datetime.now(UTC) - created > timedelta(seconds=1))
    async with start_gateway(tenants=settings(1e-6)) as deleting, deleting.http as http:

        async def empty() -> bool:
            return not await left(http)

        await eventually(empty)
        assert await requested(deleting.bus, tenant, conversation_id) is not None

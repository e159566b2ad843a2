"""Acknowledgements that reach runners and tool servers directly."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.agent.relay.test_relay import HOLDER, OTHER, finished, started
from tests.support.fixtures import ACME, SecuredNats
from tests.support.polling import eventually

from banksman.agent.relay import Relay
from banksman.agent.relayed_messages import TenantRedaction
from banksman.bus.connection import Bus
from banksman.bus.direct_acks import direct_acks
from banksman.bus.errors import PublishRefused
from banksman.bus.jetstream import last_message
from banksman.bus.messages import Message
from banksman.bus.names import ACK, RESULTS
from banksman.bus.publish import durable
from banksman.bus.secrets import CallTickets
from banksman.bus.storage.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.errors import Forbidden
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, TENANT_ACCOUNT
from banksman.deployment.users import AGENT, inbox_prefix

PUBLISHERS = pytest.mark.parametrize(
    ("user", "server", "account"), [(HOLDER, "r1", None), (ACME.user, "weather", "acme")]
)
"""A runner of account RUN, and a tool server of a tenant."""


@asynccontextmanager
async def relay_of(nats: SecuredNats) -> AsyncGenerator[Bus]:
    """The connection of an agent that serves the relay."""
    async with (
        await nats.connect(AGENT) as bus,
        Relay(bus, await CallTickets.load(bus), TenantRedaction(bus, b"")),
    ):
        yield bus


@dataclass
class Arrived:
    """The messages that arrived at a user: replies in its inbox, and direct acknowledgements."""

    replies: list[Message] = field(default_factory=list[Message])
    direct: list[Message] = field(default_factory=list[Message])


@asynccontextmanager
async def watching(nats: SecuredNats, user: str, account: str | None, server: str) -> AsyncGenerator[Arrived]:
    arrived = Arrived()
    source, owner = (RUN_ACCOUNT, server) if account is None else (TENANT_ACCOUNT, account)
    async with await nats.connect(user) as bus:
        own = f"{bus.replies.inbox}."

        def reply(message: Message) -> None:
            if not message.subject.startswith(own):
                arrived.replies.append(message)

        await bus.listen(f"{inbox_prefix(user)}.>", reply)
        await bus.listen(subjects.stored_acks(source, owner), arrived.direct.append)
        await bus.ready()
        yield arrived
        await bus.ready()


async def stores_a_call(publisher: Bus, agent: Bus, server: str, tenant: str) -> None:
    """Store the start and the result of a call, each of which must be fresh."""
    attempt = f"{new_id('k')}-1"
    held = (await CallTickets.load(agent)).issue(tenant, attempt, server)
    slots = CallSlots(publisher, may_read=False)
    assert (await slots.store_started(tenant, started(attempt, server, held))).fresh
    assert (await slots.store_result(tenant, finished(attempt, server, held), runner_epoch=1)).fresh
    # After this round trip the server has everything that the agent sent after the acknowledgement.
    await agent.ready()
    await agent.ready()
    stored = await last_message(agent, RESULTS, subjects.tool_started(tenant, attempt))
    assert stored is not None and ACK not in stored.headers


@PUBLISHERS
async def test_agent_does_not_reply_to_what_the_stream_acknowledges_directly(
    secured_nats: SecuredNats, tenant: str, user: str, server: str, account: str | None
) -> None:
    async with (
        relay_of(secured_nats) as agent,
        watching(secured_nats, user, account, server) as arrived,
        await secured_nats.connect(user) as publisher,
        direct_acks(publisher, server, account),
    ):
        await stores_a_call(publisher, agent, server, account or tenant)
        await stores_a_call(publisher, agent, server, account or tenant)
        await eventually(lambda: len(arrived.direct) == 4)
    assert arrived.replies == []


@pytest.mark.parametrize(
    "address", ["*.1", "a.>", "a", "a.1.all", "a.1.only.x", ".1", "a b.1", "a." + "x" * 99]
)
async def test_address_of_an_acknowledgement_is_an_inbox_and_a_number(
    secured_nats: SecuredNats, address: str
) -> None:
    """It cannot name another subject, such as one of a stream, which would store what the server sends."""
    attempt = f"{new_id('k')}-1"
    subject = subjects.tool_started("acme", attempt)
    async with relay_of(secured_nats) as agent, await secured_nats.connect(ACME.user) as publisher:
        data = started(attempt, "weather", None).model_dump_json().encode()
        with pytest.raises(PublishRefused, match=ACK):
            await durable(publisher, subject, data, msg_id="1", headers={ACK: address})
        assert await last_message(agent, RESULTS, subject) is None


async def test_publisher_cannot_receive_or_forge_acknowledgements_of_another_publisher(
    secured_nats: SecuredNats, tenant: str
) -> None:
    """A publisher that knows the inbox of another publisher reaches only its own account and id."""
    attempt = f"{new_id('k')}-1"
    subject = subjects.tool_started(tenant, attempt)
    victims = subjects.stored_ack(RUN_ACCOUNT, "r1", "inbox", "1", "a", "1")
    async with (
        relay_of(secured_nats) as agent,
        watching(secured_nats, HOLDER, None, "r1") as victim,
        watching(secured_nats, OTHER, None, "r2") as other,
        watching(secured_nats, ACME.user, "acme", "weather") as acme,
        await secured_nats.connect(OTHER) as runner,
        await secured_nats.connect(ACME.user) as tenants,
    ):
        held = (await CallTickets.load(agent)).issue(tenant, attempt, "r2")
        start = started(attempt, "r2", held).model_dump_json().encode()
        await durable(runner, subject, start, msg_id="1", headers={ACK: "inbox.1"})
        await eventually(lambda: len(other.direct) == 1)
        with pytest.raises(Forbidden):
            await runner.request(victims, b"{}", 5)
        await runner.listen(subjects.stored_ack(RUN_ACCOUNT, "r1", ANY, ANY, ANY, ANY), other.direct.append)
        await eventually(lambda: runner.stats.forbidden == 2)
        # A tenant may use any subject within its account; only the imports let a message leave the account.
        for forged in (victims, subjects.stored_ack(TENANT_ACCOUNT, "globex", "inbox", "1", "a", "1")):
            await tenants.publish(forged, b"{}")
        await tenants.ready()
    assert (victim.direct, acme.direct) == ([], [])

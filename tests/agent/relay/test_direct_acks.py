"""Acknowledgements that reach runners and tool servers directly, beside versions without this feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.agent.relay.test_relay import HOLDER, OTHER, finished, started
from tests.support.fixtures import ACME, SecuredNats, secured_server
from tests.support.polling import eventually

from banksman.agent.relay.relay import Relay
from banksman.agent.relay.relayed_messages import TenantRedaction
from banksman.bus.call_tickets import CallTickets
from banksman.bus.connection import Bus
from banksman.bus.direct_acks import DirectAcks
from banksman.bus.errors import PublishRefused
from banksman.bus.jetstream import last_message
from banksman.bus.leases import instance_key, renew_lease, stop_after_s
from banksman.bus.messages import Message
from banksman.bus.names import ACK, AGENTS, MSG_ID, RESULTS
from banksman.bus.publish import durable
from banksman.bus.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Forbidden
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, TENANT_ACCOUNT
from banksman.deployment.users import AGENT, OPERATOR, inbox_prefix

PUBLISHERS = pytest.mark.parametrize(
    ("user", "server", "account"), [(HOLDER, "r1", None), (ACME.user, "weather", "acme")]
)
"""A runner of account RUN, and a tool server of a tenant."""


@pytest.fixture(scope="module")
def older_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[SecuredNats]:
    """A server with the permissions of an earlier version: no new subject crosses accounts."""
    with secured_server(
        tmp_path_factory.mktemp("keys"),
        runners=("r1",),
        tenants=(ACME,),
        changed=lambda config: config.replace("stored.ack.", "unused.ack."),
    ) as secured:
        yield secured


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
        await bus.listen(subjects.stored_acks(source, owner), arrived.direct.append, optional=True)
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
async def test_agent_need_not_reply_once_an_acknowledgement_has_arrived_directly(
    secured_nats: SecuredNats, tenant: str, user: str, server: str, account: str | None
) -> None:
    async with (
        relay_of(secured_nats) as agent,
        watching(secured_nats, user, account, server) as arrived,
        await secured_nats.connect(user) as publisher,
        DirectAcks(publisher, server, account),
    ):
        await stores_a_call(publisher, agent, server, account or tenant)
        await stores_a_call(publisher, agent, server, account or tenant)
        await eventually(lambda: len(arrived.direct) == 4)
    assert len(arrived.replies) == 1


@PUBLISHERS
async def test_agent_replies_to_each_message_under_older_permissions(
    older_nats: SecuredNats,
    tenant: str,
    user: str,
    server: str,
    account: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only the broker has the configuration of the earlier version. Nothing is sent twice."""
    sent: list[Message] = []
    async with (
        relay_of(older_nats) as agent,
        await older_nats.connect(AGENT) as another,
        watching(older_nats, user, account, server) as arrived,
        await older_nats.connect(user) as publisher,
        DirectAcks(publisher, server, account),
    ):
        await another.listen(subjects.all_of("relay"), sent.append)
        await another.ready()
        await stores_a_call(publisher, agent, server, account or tenant)
        await stores_a_call(publisher, agent, server, account or tenant)
        assert publisher.stats.forbidden == 0
        await another.ready()
    assert (len(sent), len(arrived.replies), arrived.direct) == (4, 4, [])
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_older_agent_replies_to_each_message(secured_nats: SecuredNats, tenant: str) -> None:
    """An older agent does not read the header. During an upgrade, either version may get any message."""
    async with (
        await secured_nats.connect(AGENT) as agent,
        watching(secured_nats, HOLDER, None, "r1") as arrived,
        await secured_nats.connect(HOLDER) as publisher,
        DirectAcks(publisher, "r1"),
    ):

        async def relay(message: Message) -> None:
            subject = message.subject.replace("relay.run.", "tool.")
            kept = {MSG_ID: message.headers[MSG_ID]}
            stored = await agent.replies.request(subject, message.data, headers=kept, timeout_s=5)
            await agent.publish(message.reply, stored.data)

        await agent.subscribe(subjects.all_of("relay", RUN_ACCOUNT), relay, AGENTS)
        await agent.ready()
        await stores_a_call(publisher, agent, "r1", tenant)
    assert (len(arrived.replies), arrived.direct) == (2, [])


async def test_reply_to_a_repeated_message_replaces_a_missing_acknowledgement(
    secured_nats: SecuredNats,
) -> None:
    """The permissions were replaced by older ones after an acknowledgement had arrived directly."""
    sent: list[str] = []
    async with (
        await secured_nats.connect(OPERATOR) as broker,
        await secured_nats.connect(ACME.user) as publisher,
        DirectAcks(publisher, "weather", "acme"),
    ):

        async def relay(message: Message) -> None:
            inbox, number, *only = message.headers[ACK].split(".")
            sent.append("only" if only else "both")
            stored = b'{"stream": "KV_runners", "seq": %d}' % len(sent)
            if sent == ["both"]:
                direct = subjects.stored_ack(TENANT_ACCOUNT, "acme", inbox, number, "a", "1")
                await broker.publish(direct, stored)
            elif not only:
                await broker.publish(message.reply, stored)

        await broker.subscribe(subjects.all_of("relay", TENANT_ACCOUNT), relay, AGENTS)
        await broker.ready()
        lease, key = RunnerLease(runner="weather", runner_epoch=5), instance_key("weather", 5, "acme")
        for _ in range(2):
            renewed = await renew_lease(publisher, lease, 0, budget_s=stop_after_s(1), key=key)
            assert renewed == len(sent)
    # Repeats that overlap the first unacknowledged attempt have the same form as that attempt.
    assert (sent[0], set(sent[1:-1]), sent[-1]) == ("both", {"only"}, "both")


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

"""A killed holder's lease ends within three seconds; a silent one keeps its lease until it expires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.fixtures import SecuredNats, secured_server
from tests.support.polling import eventually, scripted_delay

from banksman.agent.runners.presence import RECONNECT_S, RunnerPresence
from banksman.bus import jetstream
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.messages import BusSubscription, Message
from banksman.bus.names import RUNNERS, kv_stream, kv_subject
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.leases import LEASE_TTL_S, instance_key
from banksman.contracts import subjects
from banksman.contracts.calls import SUCCESSOR_S, CallReply, CancelCall, RunnerLease
from banksman.contracts.ids import new_id
from banksman.deployment.users import AGENT, OPERATOR, TOOL_RUNNER
from banksman.runs.runners.lease import Lease, LeaseLost
from banksman.runs.runners.placement import Placements

TAKEOVER_S = 3.0
"""Seconds from the kill of a holder to the end of its lease."""
LONGER_S = RECONNECT_S + 2.0
"""Seconds after which checks would have ended the lease of a process that is followed by another."""
AGENTS = 8
COUNTED_S = 6.0
"""Seconds for which checks are counted; each agent alone would make five."""


@dataclass
class Holder:
    """A runner, reduced to its lease and its subscription."""

    bus: Bus
    lease: Lease
    keeping: asyncio.Task[None]
    id: str

    async def kill(self) -> None:
        """Close the connection as the kernel does when a process is killed, without a release."""
        self.keeping.cancel()
        await self.bus.close()

    def fall_silent(self) -> None:
        """Renew no more, with an open connection, as a frozen process does."""
        self.keeping.cancel()


@pytest.fixture
def own_nats(tmp_path: Path) -> Generator[SecuredNats]:
    """A server that the test may freeze and kill."""
    with secured_server(tmp_path) as secured:
        yield secured


@asynccontextmanager
async def holding(secured: SecuredNats) -> AsyncGenerator[Holder]:
    async with await secured.connect(TOOL_RUNNER) as bus:
        runner = new_id("r")
        cancels = subjects.tool_cancel(runner, subjects.ANY, subjects.ANY)

        async def ignore(_message: object) -> None:
            return

        await bus.subscribe(cancels, ignore)
        lease = Lease(bus, RunnerLease(runner=runner, runner_epoch=1), load=lambda: 0)
        await lease.take()
        keeping = asyncio.create_task(lease.keep())
        try:
            yield Holder(bus, lease, keeping, runner)
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})


@dataclass
class Server:
    """One process of a tool server, reduced to its lease and its replies to checks."""

    keeping: asyncio.Task[None]
    replying: BusSubscription


@asynccontextmanager
async def serving(secured: SecuredNats, server: str, epoch: int) -> AsyncGenerator[Server]:
    # Agents relay the leases of tool servers.
    async with await secured.connect(AGENT) as relay, await secured.connect(TOOL_RUNNER) as bus:
        key = instance_key(server, epoch, None)
        lease = Lease(relay, RunnerLease(runner=server, runner_epoch=epoch), key=key, load=lambda: 0)

        async def reply(message: Message) -> None:
            check = CancelCall.model_validate_json(message.data)
            if check.runner_epoch != epoch:
                if lease.taken < (check.renewed_at or 0):
                    return
                await scripted_delay(SUCCESSOR_S)
            present = CallReply(answer="done", runner_epoch=epoch, leased_at=lease.taken)
            await bus.publish(message.reply, present.model_dump_json().encode())

        replying = await bus.subscribe(subjects.tool_cancel(server, subjects.ANY, subjects.ANY), reply)
        await lease.take()
        keeping = asyncio.create_task(lease.keep())
        try:
            yield Server(keeping, replying)
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})


@asynccontextmanager
async def watching(
    secured: SecuredNats, *, delay_s: float = RECONNECT_S
) -> AsyncGenerator[Bucket[RunnerLease]]:
    """Run the check of an agent that has been connected for a while; return the leases."""
    async with (
        await secured.connect(AGENT) as bus,
        BrokerClock(bus) as clock,
        Placements(bus, clock) as placements,
        RunnerPresence(bus, placements),
    ):
        await scripted_delay(delay_s)
        yield Bucket(bus, RUNNERS, RunnerLease)


@asynccontextmanager
async def watching_with(secured: SecuredNats, agents: int) -> AsyncGenerator[None]:
    """Run the checks of several agents; yield once each of them checks."""
    async with AsyncExitStack() as stack:
        for _ in range(agents):
            await stack.enter_async_context(watching(secured, delay_s=0.0))
        await scripted_delay(RECONNECT_S)
        yield


async def held(leases: Bucket[RunnerLease], holder: Holder) -> bool:
    return await leases.get(holder.id) is not None


async def ended(leases: Bucket[RunnerLease], holder: Holder, within_s: float) -> float:
    """Wait for the end of a lease; return the seconds that it took."""
    started = asyncio.get_running_loop().time()

    async def is_ended() -> bool:
        return not await held(leases, holder)

    await eventually(is_ended, within_s)
    return asyncio.get_running_loop().time() - started


async def test_the_lease_of_a_killed_holder_ends_within_three_seconds(own_nats: SecuredNats) -> None:
    async with watching(own_nats) as leases, holding(own_nats) as killed, holding(own_nats) as other:
        await killed.kill()
        assert await ended(leases, killed, LEASE_TTL_S[1]) < TAKEOVER_S
        assert await held(leases, other) and other.lease.holds


async def test_a_killed_holder_ends_also_where_its_lease_has_expired_unnoticed(own_nats: SecuredNats) -> None:
    """After a crash of everything the server counts from the last renewal, and an agent from its start."""
    async with (
        holding(own_nats) as holder,
        await own_nats.connect(AGENT) as bus,
        await own_nats.connect(OPERATOR) as operator,
        BrokerClock(bus) as clock,
        Placements(bus, clock) as placements,
        RunnerPresence(bus, placements),
    ):
        await scripted_delay(RECONNECT_S)
        assert [lease.runner for lease in placements.leases()] == [holder.id]
        # An expired message is removed without a marker.
        await holder.kill()
        await jetstream.purge_subject(operator, kv_stream(RUNNERS), kv_subject(RUNNERS, holder.id))
        await eventually(lambda: not placements.leases(), LEASE_TTL_S[1] / 2)


async def test_a_silent_holder_keeps_its_lease_until_it_expires(own_nats: SecuredNats) -> None:
    async with watching(own_nats) as leases, holding(own_nats) as silent:
        silent.fall_silent()
        took_s = await ended(leases, silent, LEASE_TTL_S[1] + 3.0)
    assert took_s > LEASE_TTL_S[1] - 2.0
    assert not silent.lease.holds, "the holder must find its lease lost before others do"


@pytest.mark.one_server
async def test_leases_survive_a_frozen_and_a_restarted_broker(own_nats: SecuredNats) -> None:
    async with watching(own_nats) as leases, holding(own_nats) as holder:
        own_nats.server.pause()
        await scripted_delay(5.0)
        own_nats.server.resume()
        await holder.bus.ready()
        assert await held(leases, holder) and holder.lease.holds
        await asyncio.to_thread(own_nats.server.restart)
        # The connections of the check and of the holder return in any order.
        await leases.bus.ready(10.0)
        await holder.bus.ready(10.0)
        await scripted_delay(RECONNECT_S + 1.0)
        assert await held(leases, holder) and holder.lease.holds
        assert not holder.keeping.done()


async def test_a_process_of_a_tool_server_that_returns_ends_its_former_life(own_nats: SecuredNats) -> None:
    """P2: after a crash of the broker too. A frozen process without a successor keeps its lease."""
    server = new_id("s")
    async with await own_nats.connect(AGENT) as bus, BrokerClock(bus) as clock, Placements(bus, clock):
        leases = Bucket(bus, RUNNERS, RunnerLease)
        async with serving(own_nats, server, 1), serving(own_nats, server, 2) as frozen:
            await frozen.replying.unsubscribe()
            frozen.keeping.cancel()
            async with serving(own_nats, new_id("s"), 3), watching(own_nats, delay_s=LONGER_S):
                assert await leases.get(f"{server}.2") is not None
            async with serving(own_nats, server, 4), watching(own_nats, delay_s=0.0):
                began = asyncio.get_running_loop().time()

                async def is_ended() -> bool:
                    return await leases.get(f"{server}.2") is None

                await eventually(is_ended, LEASE_TTL_S[1])
                took_s = asyncio.get_running_loop().time() - began
                assert await leases.get(f"{server}.1") is not None
                assert await leases.get(f"{server}.4") is not None
    assert took_s < LEASE_TTL_S[1] / 2, "two to three seconds on a machine with nothing else to do"


async def test_a_process_that_replies_before_a_later_one_keeps_its_lease(own_nats: SecuredNats) -> None:
    """The later process replies to each check of the former one, which is alive."""
    server = new_id("s")
    async with serving(own_nats, server, 1) as first, serving(own_nats, server, 2):
        # A renewal would begin the count again.
        first.keeping.cancel()
        async with watching(own_nats, delay_s=LONGER_S) as leases:
            assert await leases.get(f"{server}.1") is not None


async def test_a_holder_that_returns_before_its_lease_was_ended_keeps_it(own_nats: SecuredNats) -> None:
    """A lease is ended by compare-and-set, so a renewal in the meantime preserves it."""
    async with watching(own_nats) as leases, holding(own_nats) as holder:
        first = await leases.get(holder.id)
        assert first is not None

        async def is_renewed() -> bool:
            now = await leases.get(holder.id)
            return now is not None and now.revision > first.revision

        await eventually(is_renewed)
        assert not await leases.delete(holder.id, revision=first.revision)
        assert await held(leases, holder) and holder.lease.holds


async def test_a_holder_whose_lease_was_ended_cannot_renew_it(own_nats: SecuredNats) -> None:
    async with watching(own_nats) as leases, holding(own_nats) as holder:
        assert await leases.delete(holder.id)
        with pytest.raises(LeaseLost):
            await holder.keeping
        assert not await held(leases, holder)


async def test_the_check_cancels_an_unknown_attempt(own_nats: SecuredNats) -> None:
    """The check is a request that every runner serves, and that has no effect."""
    received: list[CancelCall] = []
    async with watching(own_nats), await own_nats.connect(TOOL_RUNNER) as bus:
        runner = new_id("r")

        async def on_cancel(message: Message) -> None:
            received.append(CancelCall.model_validate_json(message.data))

        await bus.subscribe(subjects.tool_cancel(runner, subjects.ANY, subjects.ANY), on_cancel)
        await Lease(bus, RunnerLease(runner=runner, runner_epoch=1), load=lambda: 0).take()
        await eventually(lambda: received)
    assert {one.attempt for one in received} == {"presence"}


async def test_the_checks_of_an_idle_holder_do_not_grow_with_the_number_of_agents(
    own_nats: SecuredNats,
) -> None:
    """All agents receive the reply to a check, so one checks for all."""
    checks = 0
    async with await own_nats.connect(TOOL_RUNNER) as bus:
        runner = new_id("r")

        async def on_cancel(message: Message) -> None:
            nonlocal checks
            checks += 1
            await bus.publish(message.reply, b"")

        await bus.subscribe(subjects.tool_cancel(runner, subjects.ANY, subjects.ANY), on_cancel)
        async with watching_with(own_nats, AGENTS):
            await Lease(bus, RunnerLease(runner=runner, runner_epoch=1), load=lambda: 0).take()
            await scripted_delay(COUNTED_S)
    assert 2 <= checks < 2 * AGENTS, f"{checks} checks by {AGENTS} agents"


async def test_several_agents_end_the_lease_of_a_killed_holder_as_fast_as_one(own_nats: SecuredNats) -> None:
    async with watching_with(own_nats, AGENTS), watching(own_nats) as leases, holding(own_nats) as killed:
        await killed.kill()
        assert await ended(leases, killed, LEASE_TTL_S[1]) < TAKEOVER_S

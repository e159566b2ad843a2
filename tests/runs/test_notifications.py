"""What a process receives of the calls and conversations of others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from banksman.bus.connection import Bus
from banksman.bus.slots import CallSlots
from banksman.runs.notifications import OwnerNotifications
from banksman.runs.state import Conversation
from tests.bus.builders import finished, started
from tests.support.fixtures import connect
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S


class MachineClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}1"


async def test_a_process_receives_slots_only_once_it_drives_a_run(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    slots = CallSlots(bus)
    async with (
        await connect(nats_server) as own,
        OwnerNotifications(own, clock := MachineClock()) as notifications,
    ):
        await own.ready()
        before = own.nc.stats["in_msgs"]
        await slots.store_started(tenant, started("k-1"))
        await slots.store_result(tenant, finished("k-1"))
        await own.ready()
        # The reply to `ready` alone.
        assert own.nc.stats["in_msgs"] == before + 1

        state = Conversation(tenant, finished("k-2").conversation_id)
        async with notifications.following(state):
            await own.ready()
            notifications.slots(tenant, "k-2")
            await slots.store_result(tenant, result := finished("k-2"))
            until = clock.now() + timedelta(seconds=WAIT_TIMEOUT_S)
            while notifications.slots(tenant, "k-2").finished is None and clock.now() < until:
                await notifications.wait(state, until)

        assert notifications.slots(tenant, "k-2").finished == result

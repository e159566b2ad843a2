"""What the monitoring port says about full streams and the room of a server."""

from __future__ import annotations

import re

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import DEAD, api
from banksman.bus.publish import durable
from banksman.contracts.errors import Overloaded
from banksman.runtime.settings import DiskSettings
from tests.gateway.conftest import Served, gateway_on
from tests.support.nats import NatsServer
from tests.support.polling import eventually

pytestmark = pytest.mark.one_server
LIMITS = DiskSettings(low_percent=0, full_percent=0).limits()
"""The disk of the machine that runs the tests has room, however full it is."""


async def test_a_stream_of_dead_letters_that_is_full_by_its_content_is_a_warning(own_bus: Bus) -> None:
    info = await call(own_bus, api("STREAM.INFO", DEAD))
    await call(own_bus, api("STREAM.UPDATE", DEAD), {**info["config"], "max_bytes": 40_000})
    await own_bus.disk.look(LIMITS)
    assert await own_bus.disk.warning() is None

    with pytest.raises(Overloaded):
        for number in range(100):
            await durable(own_bus, "dead.test", b"x" * 1_000, msg_id=str(number))
    await own_bus.disk.look(LIMITS)

    assert "stream DEAD is 9" in str(await own_bus.disk.warning())
    assert await own_bus.disk.problem() is None


async def test_thresholds_are_settings_of_a_share_and_of_bytes(own_bus: Bus) -> None:
    await own_bus.disk.look(DiskSettings(low_bytes=1 << 62, low_percent=100, full_bytes=0).limits())
    assert "the disk of NATS is nearly full" in str(await own_bus.disk.warning())
    assert await own_bus.disk.problem() is None

    await own_bus.disk.look(DiskSettings(low_bytes=0, full_bytes=0, low_percent=100, full_percent=0).limits())
    assert re.search("nearly full: [0-9]+ of [0-9]+ file entries are free", str(await own_bus.disk.warning()))

    await own_bus.disk.look(DiskSettings(full_bytes=1 << 62, full_percent=100).limits())
    assert "the disk of NATS is full" in str(await own_bus.disk.problem())


async def test_the_page_of_an_operator_shows_a_full_disk(
    own_nats: NatsServer, own_bus: Bus, tenant: str
) -> None:
    full = DiskSettings(full_bytes=1 << 62, full_percent=100)
    async with gateway_on(own_nats, own_bus, tenant, disk=full) as served:
        await eventually(lambda: _disk_problem(served))
        async with served.socket() as socket:
            assert [text for text in socket.welcome["notices"] if "the disk of NATS is full" in text]


async def _disk_problem(served: Served) -> bool:
    return "disk" in await served.health.problems()

"""The readiness check of streams, consumers and the server."""

from __future__ import annotations

import asyncio

import pytest

from banksman.bus.connection import Bus
from banksman.deployment.streams import Durability
from tests.support.nats import NatsServer
from tests.support.polling import eventually


@pytest.mark.one_server
async def test_a_check_continues_when_the_request_that_began_it_ends(
    own_bus: Bus, own_nats: NatsServer
) -> None:
    """A readiness request ends after two seconds; a busy machine may need more for the check."""

    def requests() -> int:
        return int(own_nats.varz()["jetstream"]["stats"]["api"]["total"])

    check = Durability.of_app(own_bus)
    await check.problem()
    before = requests()
    await check.problem()
    whole = requests() - before

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await check.problem()

    assert whole > 1
    await eventually(lambda: requests() >= before + 2 * whole)

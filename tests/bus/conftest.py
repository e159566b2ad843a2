"""Fixtures with a work queue."""

from __future__ import annotations

import pytest

from banksman.bus.connection import Bus
from banksman.deployment.streams import provision
from tests.bus.queues import queue_topology


@pytest.fixture
async def queue(bus: Bus, tenant: str) -> str:
    """Return the name of a stream, which is also the prefix of its subjects. Its durable is `workers`."""
    await provision(bus, queue_topology(tenant))
    return tenant


@pytest.fixture
async def patient_queue(bus: Bus, tenant: str) -> str:
    """A queue that redelivers messages without in-progress signals later than any test waits."""
    await provision(bus, queue_topology(tenant, ack_wait_s=600))
    return tenant

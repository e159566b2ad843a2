"""The relay of an agent, for tests of one runner or tool server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from banksman.agent.relay import Relay
from banksman.agent.relayed_messages import TenantRedaction
from banksman.bus.secrets import CallTickets
from banksman.deployment.users import AGENT
from tests.support.fixtures import SecuredNats


@asynccontextmanager
async def relaying(secured: SecuredNats) -> AsyncGenerator[CallTickets]:
    """Relay as an agent does while the block runs; return the tickets of the deployment."""
    async with await secured.connect(AGENT) as bus:
        tickets = await CallTickets.load(bus)
        async with Relay(bus, tickets, TenantRedaction(bus, b"")):
            yield tickets


@pytest.fixture
async def tickets(secured_nats: SecuredNats) -> AsyncGenerator[CallTickets]:
    """The tickets of calls, while an agent relays the messages of runners and tool servers."""
    async with relaying(secured_nats) as loaded:
        yield loaded

"""A running system of these tests' own: they fill its queues with poison and kill its agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from banksman.testing.client import Client
from banksman.testing.system import System
from tests.gateway.conftest import agent, gateway, start_gateway
from tests.scenarios.conftest import (
    PATIENCE_S,
    backboard_port,
    http,
    json_api,
    model,
    nats,
    operator,
    play,
    system,
)

__all__ = [
    "agent",
    "backboard_port",
    "client",
    "gateway",
    "http",
    "json_api",
    "model",
    "nats",
    "operator",
    "play",
    "start_gateway",
    "system",
]


@pytest.fixture
async def client(system: System) -> AsyncGenerator[Client]:
    """A client that waits for what takes several deliveries, on a machine that has more to do."""
    async with Client.connected(system.url, patience_s=PATIENCE_S * 6) as connected:
        yield connected

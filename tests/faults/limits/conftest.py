"""A system for these tests only: they fill its queues with poison messages and kill its agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.faults.chaos.conftest import Stage, make_assistants
from tests.gateway.conftest import agent, gateway, start_gateway
from tests.scenarios.conftest import (
    WAIT_TIMEOUT_S,
    backboard_port,
    git_port,
    http,
    json_api,
    mcp_port,
    model,
    nats,
    operator,
    play,
    search_port,
    system,
    vendors,
    webhook_port,
)
from tests.support.chaos.fleet import Fleet
from tests.support.client import Client
from tests.support.model_server import ModelServer
from tests.support.system import System

__all__ = [
    "agent",
    "backboard_port",
    "client",
    "gateway",
    "git_port",
    "http",
    "json_api",
    "mcp_port",
    "model",
    "nats",
    "operator",
    "play",
    "search_port",
    "start_gateway",
    "system",
    "vendors",
    "webhook_port",
]


@pytest.fixture
async def client(system: System) -> AsyncGenerator[Client]:
    """A client whose waits last several redeliveries on a busy machine."""
    async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as connected:
        yield connected


MAY_WAIT = 20
"""Runs that may wait for the one agent of `stage`."""


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stage]:
    """One process of each service, for tests that stop some of them. Each test leaves all running."""
    async with ModelServer.running() as model:
        settings = {
            "BANKSMAN_MODELS__ANTHROPIC_API_KEY": "sk-ant-test-canary-anthropic-0123456789",
            "BANKSMAN_MODELS__ANTHROPIC_BASE_URL": model.url,
            "BANKSMAN_GATEWAY__MAX_WAITING_RUNS_PER_TENANT": str(MAY_WAIT),
            "BANKSMAN_AGENT__SLOTS": "6",
        }
        directory = tmp_path_factory.mktemp("stage")
        async with Fleet(directory, model.url, agents=1, gateways=1, runners=1, settings=settings) as fleet:
            await make_assistants(fleet)
            yield Stage(fleet, model)
        assert model.violations == []

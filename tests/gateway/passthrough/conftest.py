"""A gateway without NATS, which serves passthrough, and its upstreams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY
from tests.support.model_server import ModelServer
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.gateway.front import listening_front
from banksman.gateway.settings import GatewayServiceSettings, GatewaySettings, Upstream
from banksman.runtime.health import Health
from banksman.runtime.settings import ApprovalSettings

DIALECTS = ("openai", "anthropic", "responses")


@dataclass(frozen=True)
class Passing:
    """A gateway that serves passthrough."""

    url: str

    @property
    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=WAIT_TIMEOUT_S)


StartPassing = Callable[..., AbstractAsyncContextManager[Passing]]


@pytest.fixture
async def upstream() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as server:
        yield server


@pytest.fixture
def start_passing() -> StartPassing:
    """Return a function that starts a gateway with these upstreams and settings."""

    @asynccontextmanager
    async def start(*upstreams: Upstream, **gateway: Any) -> AsyncGenerator[Passing]:
        settings = GatewayServiceSettings(
            approvals=ApprovalSettings.model_validate({"signing_key": SIGNING_KEY}),
            gateway=GatewaySettings(port=0, upstreams=upstreams, **gateway),
        )
        async with listening_front(settings, Health("gateway", started=True)) as front:
            yield Passing(f"http://127.0.0.1:{front.port}")

    return start


@pytest.fixture
async def through(start_passing: StartPassing, upstream: ModelServer) -> AsyncGenerator[Passing]:
    """A gateway in front of the model server."""
    async with start_passing(to(upstream)) as passing:
        yield passing


def to(server: ModelServer, **fields: Any) -> Upstream:
    """Return the settings of the model server as an upstream."""
    return Upstream(**{"name": "server", "base_url": server.openai_url, "dialects": DIALECTS, **fields})

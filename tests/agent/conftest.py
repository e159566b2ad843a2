from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

import pytest
from tests.support.deltas import Shown
from tests.support.model_server import ModelServer

from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.catalog import Providers

Vendor = Literal["anthropic", "openai"]


@pytest.fixture
async def server() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as running:
        yield running


@pytest.fixture
def settings(server: ModelServer) -> ProviderSettings:
    return ProviderSettings(
        anthropic_base_url=server.url,
        openai_base_url=server.openai_url,
        demo_base_url=server.openai_url,
        request_timeout_s=2.0,
        first_delay_s=0.01,
    )


@pytest.fixture
async def providers(settings: ProviderSettings) -> AsyncGenerator[Providers]:
    catalog = Providers(settings)
    yield catalog
    await catalog.close()


@pytest.fixture(params=["openai", "anthropic"])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return request.param


@pytest.fixture
async def provider(providers: Providers, vendor: Vendor) -> Provider:
    """The adapter of each vendor, with the vendor's real SDK, against the model server.

    The SDK is imported first, so that the import does not count towards a test's deadline.
    """
    await providers.warm(f"{vendor}:any")
    return providers.choose(f"{vendor}:any")[0]


@pytest.fixture
def shown() -> Shown:
    return Shown()

"""Adapters that are connected to stand-ins by the setting `models.providers`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.catalog import Providers
from tests.support.vendors.base import Brain, StandIn
from tests.vendors.brain import brain


@asynccontextmanager
async def connected(
    stand_in: type[StandIn], model_brain: Brain = brain, **settings: Any
) -> AsyncGenerator[tuple[StandIn, Provider]]:
    """Serve a stand-in; yield it with its provider."""
    async with stand_in.running(model_brain) as server, opened(server, **settings) as (provider,):
        yield server, provider


AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "eu-central-1"}
"""The credentials with which Bedrock's SDK signs requests."""


@asynccontextmanager
async def opened(*servers: StandIn, **settings: Any) -> AsyncGenerator[list[Provider]]:
    """Yield the providers of servers."""
    entries = {provider_name(server): server.entry(server.url) for server in servers}
    providers = Providers(
        ProviderSettings.model_validate({"providers": entries, "max_attempts": 1, **settings})
    )
    before = dict(os.environ)
    os.environ.update(AWS)
    try:
        yield [providers.choose(f"{provider_name(server)}:{server.model}")[0] for server in servers]
    finally:
        os.environ.clear()
        os.environ.update(before)
        await providers.close()


def provider_name(server: StandIn | type[StandIn]) -> str:
    return server.name.lower().translate(str.maketrans(" .", "--", "()"))

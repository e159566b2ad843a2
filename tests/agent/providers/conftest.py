"""The adapter of each vendor with the vendor's real SDK, and the requests to its server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.backboard import BackboardServer
from tests.support.model_server import ModelServer
from tests.support.scripted_models import RawReply, ScriptedReply

from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.catalog import Providers

VENDORS = ("anthropic", "openai", "backboard")


@dataclass(frozen=True)
class Vendor:
    """One vendor's adapter, and a server that replaces the vendor."""

    name: str
    provider: Provider
    model_server: ModelServer
    backboard: BackboardServer

    def play(self, *replies: ScriptedReply | RawReply) -> str:
        """Load replies; return the vendor's name of the model that plays them."""
        if self.name == "backboard":
            self.backboard.play(*replies)
            return "openai/gpt-4o"
        return self.model_server.play("golden", replies, by="count")

    def requests(self) -> list[dict[str, Any]]:
        """All requests so far."""
        if self.name == "backboard":
            return [{"method": r.method, "path": r.path, "body": r.body} for r in self.backboard.requests]
        return [
            {"method": "POST", "path": request.path, "body": request.body}
            for request in self.model_server.requests("golden")
        ]

    def violations(self) -> list[Any]:
        """Requests that the vendor would refuse."""
        return [*self.model_server.violations, *self.backboard.violations]


@pytest.fixture(params=VENDORS)
async def api(request: pytest.FixtureRequest) -> AsyncGenerator[Vendor]:
    async with ModelServer.running() as model_server, BackboardServer.running() as backboard:
        settings = ProviderSettings.model_validate(
            {
                "openai_base_url": model_server.openai_url,
                "anthropic_base_url": model_server.url,
                "backboard_base_url": backboard.url,
                "max_attempts": 1,
                "max_wait_s": 0,
            }
        )
        providers = Providers(settings)
        await providers.warm(f"{request.param}:any")
        yield Vendor(request.param, providers.choose(f"{request.param}:any")[0], model_server, backboard)
        await providers.close()

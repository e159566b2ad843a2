"""The list of models that runs can use."""

from __future__ import annotations

import json

from tests.gateway.conftest import GatewayFactory
from tests.support.model_server import ModelServer

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.assistants import PROVIDERS
from banksman.gateway.assistants.run_settings import ModelCatalog, ModelNames
from banksman.gateway.settings import Upstream
from banksman.runs.pricing import Price


async def test_models_have_provider_price_and_context() -> None:
    prices = {"openai:own-model": Price(input=3, output=9)}
    listed = [
        ("openai", "gpt-5"),
        ("openai", "own-model"),
        ("openai", "text-embedding-3-small"),
        ("anthropic", "claude-sonnet-4-5"),
        ("elsewhere", "model"),
    ]
    views = await ModelCatalog(ModelNames("openai:gpt-5", PROVIDERS), prices).describe(listed, "t")
    assert [one.id for one in views] == ["openai:gpt-5", "anthropic:claude-sonnet-4-5", "openai:own-model"]
    first, second, own = views
    assert (first.provider, first.name, first.default) == ("openai", "gpt-5", True)
    assert (first.input_usd, first.output_usd, first.context_tokens) == (1.25, 10, 400_000)
    assert (second.input_usd, second.default) == (3, False)
    assert (own.input_usd, own.output_usd, own.context_tokens) == (3, 9, None)


async def test_the_models_of_the_upstreams_are_listed(
    start_gateway: GatewayFactory, upstream: ModelServer, bus: Bus
) -> None:
    server = Upstream(name="demo", base_url=upstream.openai_url, dialects=("openai",))
    async with start_gateway(upstreams=(server,)) as gateway, gateway.http as http:
        items = (await http.get("/context/models")).json()["items"]
        over_nats = json.loads(await bus.request(subjects.api(gateway.tenant, "model", "list"), b"{}", 10))
    assert {"id": "demo:demo", "default": True, "input_usd": 0}.items() <= items[0].items()
    assert {one["provider"] for one in items} == {"demo"}
    assert over_nats["items"] == items


async def test_a_demo_model_that_is_named_without_provider_is_listed_once() -> None:
    views = await ModelCatalog(ModelNames("demo", PROVIDERS), {}).describe([("demo", "demo")], "t")
    assert [(one.id, one.name, one.default) for one in views] == [("demo:demo", "demo", True)]

"""What model servers state about their models."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.polling import eventually

from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.agent.providers.facts import Facts
from banksman.agent.providers.retrying import RetryingProvider


@asynccontextmanager
async def told(vendor: str, routes: dict[str, Any]) -> AsyncGenerator[tuple[Providers, list[str]]]:
    """Serve JSON by path; yield the providers with one entry for that server, and the paths asked for."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path not in routes:
            raise web.HTTPNotFound
        found = routes[request.path]
        return web.json_response(found) if isinstance(found, dict) else web.Response(text=found)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        entry = {"base_url": str(server.make_url("/v1")), "vendor": vendor}
        providers = Providers(ProviderSettings.model_validate({"providers": {"mine": entry}}))
        yield providers, asked
        await providers.close()


async def facts_of(providers: Providers, asked: list[str], questions: int) -> Facts:
    provider, model = providers.choose("mine:qwen3")
    assert isinstance(provider, RetryingProvider)
    assert provider.facts(model) == Facts()
    await eventually(lambda: len(asked) >= questions and provider.facts(model) != Facts())
    return provider.facts(model)


@pytest.mark.parametrize(
    ("vendor", "routes", "facts"),
    [
        ("vllm", {"/v1/models": {"data": [{"id": "qwen3", "max_model_len": 32_768}]}}, Facts(32_768)),
        ("vllm", {"/v1/models": '[{"id": "qwen3", "max_model_len": 32768}]'}, Facts(32_768)),
        (
            "openrouter",
            {
                "/v1/models": {
                    "data": [
                        "odd",
                        {"id": "other", "context_length": 1_000},
                        {
                            "id": "qwen3",
                            "context_length": 40_960,
                            "architecture": {"input_modalities": ["text", "image"]},
                        },
                    ]
                }
            },
            Facts(40_960, images=True),
        ),
        (
            "llama.cpp",
            {"/props": {"default_generation_settings": {"n_ctx": 8_192}, "modalities": {"vision": False}}},
            Facts(8_192, images=False),
        ),
        (
            "ollama",
            {
                "/api/show": {"capabilities": ["completion"], "parameters": "stop x\nnum_ctx      16384\n"},
                "/api/ps": {"models": [{"model": "qwen3:latest", "context_length": 4_096}]},
            },
            Facts(4_096, images=False),
        ),
        (
            "ollama",
            {"/api/show": {"capabilities": ["vision"], "parameters": "num_ctx 16384"}, "/api/ps": {}},
            Facts(16_384, images=True),
        ),
    ],
)
async def test_the_size_and_the_vision_of_a_model_come_from_its_server(
    vendor: str, routes: dict[str, Any], facts: Facts
) -> None:
    async with told(vendor, routes) as (providers, asked):
        found = await facts_of(providers, asked, len(routes))

        assert found == facts
        assert providers.context_tokens("mine:qwen3") == facts.context_tokens
        assert sorted(set(asked)) == sorted(routes)
        assert len(asked) == len(routes)


@pytest.mark.parametrize("answer", ["no JSON", "[" * 100_000, "x" * 3_000_000, {"data": {"id": 1}}])
async def test_a_server_that_states_nonsense_is_ignored(answer: Any) -> None:
    async with told("vllm", {"/v1/models": answer}) as (providers, asked):
        providers.context_tokens("mine:qwen3")
        await eventually(lambda: asked == ["/v1/models"])
        assert providers.context_tokens("mine:qwen3") is None


async def test_a_vendor_without_such_facts_is_not_asked() -> None:
    async with told("openai", {}) as (providers, asked):
        assert providers.context_tokens("mine:qwen3") is None
        await providers.close()

        assert asked == []

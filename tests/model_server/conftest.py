from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from anthropic import AsyncAnthropic
from anthropic import DefaultAioHttpClient as AnthropicHttpClient
from openai import AsyncOpenAI
from openai import DefaultAioHttpClient as OpenAIHttpClient
from tests.support.model_server import ModelServer
from tests.support.timeouts import WAIT_TIMEOUT_S


@pytest.fixture
async def server() -> AsyncGenerator[ModelServer]:
    async with ModelServer.running() as running:
        yield running


@pytest.fixture
async def openai(server: ModelServer) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.openai_url,
        api_key="any",
        max_retries=0,
        timeout=WAIT_TIMEOUT_S,
        http_client=OpenAIHttpClient(verify=False),
    ) as client:
        yield client


@pytest.fixture
async def anthropic(server: ModelServer) -> AsyncGenerator[AsyncAnthropic]:
    async with AsyncAnthropic(
        base_url=server.url,
        api_key="any",
        max_retries=0,
        timeout=WAIT_TIMEOUT_S,
        http_client=AnthropicHttpClient(verify=False),
    ) as client:
        yield client

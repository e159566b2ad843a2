"""What the refusals of vendors mean: a request that is too long, a spent quota, or a pause."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from tests.agent.providers.test_openai_wire import complete, upstream
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ContextOverflow, ProviderFailed
from banksman.contracts.messages import UserMessage

REQUEST = ModelRequest("m", "", (UserMessage(message_id="m1", content="go"),), ())


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


OVERFLOWS: Mapping[str, tuple[int, Any]] = {
    "openai": (
        400,
        error("Your input exceeds the limits of this model.", code="context_length_exceeded"),
    ),
    "azure": (400, error("This model's maximum context length is 128000 tokens.")),
    "gemini": (
        400,
        error("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    ),
    "xai": (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
    ),
    "groq": (400, error("Please reduce the length of the messages or completion.")),
    "groq-tokens-per-minute": (413, error("Request too large for model `x`", code="rate_limit_exceeded")),
    "kimi": (400, error("Invalid request: Your request exceeded model token limit: 8192")),
    "zai": (400, error("Prompt exceeds max length", code="1261")),
    "zai-code": (400, error("Prompt", code="1261")),
    "bedrock": (400, error("Input is too long for requested model.")),
    "copilot": (400, error("prompt token count of 145133 exceeds the limit of 128000")),
    "dashscope": (400, error("<400> InvalidParameter: Range of input length should be [1, 129024]")),
    "mistral": (
        400,
        error("Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),
    ),
    "openrouter": (
        400,
        error(
            "Provider returned error", code=400, metadata={"raw": '{"error": "prompt is too long: 9 > 8"}'}
        ),
    ),
    "vllm": (400, error("The decoder prompt (length 5000) is longer than the maximum model length of 4096.")),
    "llama.cpp": (400, error("the request exceeds the available context size, try increasing it", code=400)),
    "ollama": (500, error("prompt too long; exceeded max context length by 12 tokens")),
    "text-generation-inference": (422, error("`inputs` must have less than 4095 tokens. Given: 5000")),
    "by-size": (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
}


async def refused(status: int, body: Any, **settings: Any) -> ModelReply:
    """Send a request to a server that refuses it; return the reply."""

    async def handle() -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text)

    async with upstream(handle) as (url, requests):
        try:
            return await complete(f"{url}/v1", **settings)
        finally:
            assert len(requests) == 1


@pytest.mark.parametrize("vendor", OVERFLOWS)
async def test_request_that_a_vendor_finds_too_long_is_recognised(vendor: str) -> None:
    with pytest.raises(ContextOverflow) as overflow:
        await refused(*OVERFLOWS[vendor])

    assert overflow.value.status == OVERFLOWS[vendor][0]
    assert overflow.value.code == "context_overflow"


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (400, "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
        (400, "invalid_request_error", "input length and `max_tokens` exceed context limit: 199000 + 20000"),
        (413, "request_too_large", "Request exceeds the maximum size"),
    ],
)
async def test_request_that_anthropic_finds_too_long_is_recognised(
    status: int, kind: str, message: str
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": message}}

    async def handle() -> web.Response:
        return web.json_response(body, status=status)

    async with upstream(handle) as (url, _):
        providers = Providers(ProviderSettings(anthropic_base_url=url))
        with pytest.raises(ContextOverflow):
            await providers.choose("anthropic:m")[0].complete(REQUEST, deltas=Shown(), deadline_s=30)
        await providers.close()


@pytest.mark.parametrize(
    ("host", "expected"), [("api.cerebras.ai", ContextOverflow), ("other.invalid", ProviderFailed)]
)
async def test_refusal_without_a_body_means_too_long_only_at_cerebras(
    monkeypatch: pytest.MonkeyPatch, host: str, expected: type[ProviderFailed]
) -> None:
    async def handle() -> web.Response:
        return web.Response(status=400)

    async with upstream(handle) as (proxy, requests):
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(ProviderFailed) as failure:
            await complete(f"http://{host}/v1")

    assert type(failure.value) is expected
    assert requests[0].headers["host"] == host


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.")),
        (400, error("Invalid schema for function 'bash'", code="invalid_function_parameters")),
        (401, error("Incorrect API key provided.", code="invalid_api_key")),
        (429, error("Too many tokens, please wait before trying again.")),
    ],
)
async def test_other_refusals_are_not_taken_for_a_request_that_is_too_long(status: int, body: Any) -> None:
    with pytest.raises(ProviderFailed) as failure:
        await refused(status, body)

    assert failure.value.code == "provider_error"


@pytest.mark.parametrize(
    "body",
    [
        error("You exceeded your current quota, please check your plan.", code="insufficient_quota"),
        error("Your account is suspended.", type="exceeded_current_quota_error"),
        error("Insufficient balance or no resource package. Please recharge.", code="1113"),
        error("Access denied, please make sure your account is in good standing.", code="Arrearage"),
    ],
)
async def test_spent_quota_fails_at_once_and_lets_another_model_reply(body: Any) -> None:
    with pytest.raises(ProviderFailed) as failure:
        await refused(429, body, max_wait_s=60, max_attempts=5)

    assert failure.value.unavailable


async def test_pause_that_gemini_names_in_the_body_of_a_refusal_is_kept() -> None:
    """Gemini's limit per minute has the words of a spent quota, but names the time after which it is over."""
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.02s"}
    body = error("You exceeded your current quota, insufficient_quota.", code=429, details=[retry])
    replies = iter([web.json_response(body, status=429)])
    shown = Shown()

    async def handle() -> web.Response:
        text = 'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
        return next(replies, web.Response(text=text, content_type="text/event-stream"))

    async with upstream(handle) as (url, _):
        settings = ProviderSettings(openai_base_url=f"{url}/v1", first_delay_s=0)
        providers = Providers(settings)
        reply = await providers.choose("openai:m")[0].complete(REQUEST, deltas=shown, deadline_s=30)
        await providers.close()

    assert reply.text == "x"
    assert [0.01 < pause.next_attempt_s <= 0.022 for pause in shown.pauses] == [True]

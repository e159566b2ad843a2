"""The usage of passthrough counts for the tenant, and a tenant's own prompt may be added."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedReply, ScriptedUsage
from tests.support.usage import counting

from banksman.bus.connection import Bus
from banksman.bus.names import USAGE
from banksman.bus.storage.kv import Bucket
from banksman.contracts.ids import new_id
from banksman.contracts.messages import Usage
from banksman.contracts.usage import UsageTotals, passthrough_key
from banksman.gateway.interfaces.passthrough.metering import UsageMeter
from banksman.gateway.settings import ModelSettings, OfferSettings
from banksman.runs.pricing import Price
from banksman.runtime.tenants import TenantLimits, TenantSettings

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
INCLUDED = {"include_usage": True}
HEADERS = {"anthropic-version": "2023-06-01"}
USED = ScriptedReply(
    text="one two", usage=ScriptedUsage(input_tokens=1000, output_tokens=20, cached_tokens=300)
)


def body(path: str, model: str, **fields: Any) -> dict[str, Any]:
    if path == RESPONSES:
        return {"model": model, "input": "hi", **fields}
    more: dict[str, Any] = {"max_tokens": 9} if path == MESSAGES else {}
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more, **fields}


async def test_passthrough_counts_for_its_tenant(
    start_gateway: GatewayFactory, upstream: ModelServer, bus: Bus, tenant: str
) -> None:
    """Whole and streamed replies of each API. A stream of OpenAI's reports usage only on request."""
    model = upstream.play("used", [USED], at_end="repeat")
    models = ModelSettings(demo_base_url=upstream.openai_url)
    async with start_gateway(models=models) as gateway, gateway.http as http:
        for path in (CHAT, MESSAGES, RESPONSES):
            for streams in (False, True):
                given: dict[str, Any] = {"stream": streams}
                if path == CHAT and streams:
                    given["stream_options"] = {"include_usage": True}
                response = await http.post(path, json=body(path, model, **given), headers=HEADERS)
                assert response.status_code == 200
        refused = await http.post(CHAT, json=body(CHAT, "unknown"))
    entry = await Bucket(bus, USAGE, UsageTotals).get(passthrough_key(tenant))
    assert refused.status_code == 404 and entry is not None
    # Anthropic reports the tokens of its cache in addition.
    assert (entry.value.day.requests, entry.value.day.output_tokens) == (6, 120)
    assert entry.value.day.input_tokens == 6 * 1000 + 2 * 300
    async with start_gateway(models=models) as gateway, gateway.http as http:
        report = (await http.get("/context/usage")).json()
    async with counting(bus) as ledger:
        assert (await ledger.consumed(tenant, 0)).day.tokens == entry.value.day.tokens
    assert report["windows"][0]["requests"] == 6


def test_usage_that_the_upstream_does_not_report_is_estimated() -> None:
    found: list[Usage] = []
    meter = UsageMeter("openai", 400, lambda _, usage: found.append(usage))
    for _ in range(7):
        meter.note_events(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    meter.end("u", 200)
    assert [(usage.input_tokens, usage.output_tokens) for usage in found] == [(100, 7)]


def test_a_stream_that_a_client_cuts_counts_its_events() -> None:
    """Anthropic reports one output token with the first event, and all of them only with the last."""
    found: list[Usage] = []
    meter = UsageMeter("anthropic", 400, lambda _, usage: found.append(usage))
    meter.note_events(b'data: {"message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n')
    for _ in range(7):
        meter.note_events(b'data: {"delta":{"text":"x"}}\n\n')
    meter.end("u", 200, complete=False)
    assert [(usage.input_tokens, usage.output_tokens) for usage in found] == [(9, 8)]


async def test_the_cost_of_passthrough_counts_and_uses_up_the_limit_of_its_tenant(
    start_gateway: GatewayFactory, upstream: ModelServer, bus: Bus, tenant: str
) -> None:
    """Each API, whole and streamed. Cached tokens have a price of their own."""
    model = upstream.play("used", [USED], at_end="repeat")
    prices = OfferSettings(prices={f"demo:{model}": Price(input=1_000, output=10_000, cached=100)})
    of_request = 0.7 + 0.03 + 0.2
    limits = TenantSettings(named={tenant: TenantLimits(cost_usd_per_day=6 * of_request)})
    chosen = {"models": ModelSettings(demo_base_url=upstream.openai_url), "agent": prices, "tenants": limits}
    async with start_gateway(**chosen) as gateway, gateway.http as http:
        for path in (CHAT, MESSAGES, RESPONSES):
            for more in ({}, {"stream": True, **({"stream_options": INCLUDED} if path == CHAT else {})}):
                response = await http.post(path, json=body(path, model, **more), headers=HEADERS)
                assert response.status_code == 200
        refused = await http.post(CHAT, json=body(CHAT, model))
    entry = await Bucket(bus, USAGE, UsageTotals).get(passthrough_key(tenant))
    assert entry is not None and refused.status_code == 429
    # Anthropic reports the tokens of its cache in addition.
    assert entry.value.day.cost_usd == pytest.approx(6 * of_request + 2 * 0.3)


async def test_a_model_without_a_price_is_refused_while_the_only_limit_is_one_of_cost(
    start_gateway: GatewayFactory, upstream: ModelServer, tenant: str
) -> None:
    model = upstream.play("used", [USED], at_end="repeat")
    models = ModelSettings(demo_base_url=upstream.openai_url)
    for limits, status in (
        (TenantLimits(cost_usd_per_month=5), 403),
        (TenantLimits(cost_usd_per_month=5, tokens_per_day=10**9), 200),
        (TenantLimits(), 200),
    ):
        tenants = TenantSettings(named={tenant: limits})
        async with start_gateway(models=models, tenants=tenants) as gateway, gateway.http as http:
            responses = [
                await http.post(path, json=body(path, model), headers=HEADERS)
                for path in (CHAT, MESSAGES, RESPONSES)
            ]
        assert [response.status_code for response in responses] == [status] * 3
        assert all(("has no known price" in one.text) == (status == 403) for one in responses)
    assert len(upstream.requests("used")) == 6


async def test_a_tenant_that_has_used_up_its_tokens_is_refused_and_others_are_served(
    start_gateway: GatewayFactory, upstream: ModelServer, tenant: str
) -> None:
    model = upstream.play("used", [USED], at_end="repeat")
    other = new_id("t")
    limits = TenantSettings(named={tenant: TenantLimits(tokens_per_day=1000)})
    keys = (key_of("alice", tenant), key_of("bob", other))
    models = ModelSettings(demo_base_url=upstream.openai_url)
    async with start_gateway(keys=keys, models=models, tenants=limits) as gateway, gateway.http as http:
        alice, bob = ({"authorization": f"Bearer {TOKENS[user]}"} for user in ("alice", "bob"))
        first = await http.post(CHAT, json=body(CHAT, model), headers=alice)
        refused = await http.post(CHAT, json=body(CHAT, model), headers=alice)
        anthropic = await http.post(MESSAGES, json=body(MESSAGES, model), headers=alice | HEADERS)
        served = [(await http.post(CHAT, json=body(CHAT, model), headers=bob)).status_code for _ in range(2)]
    assert (first.status_code, served) == (200, [200, 200])
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert refused.json()["error"]["message"].startswith("The limit of this day is used up.")
    assert 0 < int(refused.headers["retry-after"]) <= 24 * 3600
    assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (429, "rate_limit_error")
    assert len(upstream.requests("used")) == 3


@pytest.mark.parametrize(
    ("path", "own", "field", "expected"),
    [
        (
            CHAT,
            {},
            "messages",
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        ),
        (MESSAGES, {"system": "Own."}, "system", "Be brief.\n\nOwn."),
        (
            MESSAGES,
            {"system": [{"type": "text", "text": "Own."}]},
            "system",
            [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Own."}],
        ),
        (RESPONSES, {}, "instructions", "Be brief."),
    ],
)
async def test_a_prompt_named_by_its_id_precedes_the_prompt_of_the_request(
    start_gateway: GatewayFactory,
    upstream: ModelServer,
    path: str,
    own: dict[str, Any],
    field: str,
    expected: Any,
) -> None:
    """R23, R26: the base prompt, without tools; a request without `prompt_id` keeps its bytes."""
    model = upstream.play("prompt", [ScriptedReply(text="ok")], at_end="repeat")
    models = ModelSettings(demo_base_url=upstream.openai_url)
    async with start_gateway(models=models) as gateway, gateway.http as http:
        prompt = (await http.post("/v1/system-prompts", json={"content": "Be brief."})).json()["id"]
        sent = body(path, model, **own)
        named = await http.post(path, json=sent | {"prompt_id": prompt}, headers=HEADERS)
        missing = await http.post(path, json=sent | {"prompt_id": "none"}, headers=HEADERS)
    [recorded] = upstream.requests("prompt")
    assert named.status_code == 200 and missing.status_code == 404
    assert json.loads(recorded.raw) == {**sent, field: expected}

"""Who searches the web for a tenant: its administrator's choice, with a key, unless the operator decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from tests.gateway.identity.test_api_keys import bearer
from tests.support.search_providers import KEY, SearchProviders
from tests.support.web_server import web_server

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.ids import new_id

PROVIDER = "/context/search-provider"


@pytest.mark.parametrize(
    ("provider", "path", "key"),
    [("searxng", "search", None), ("brave", "res/v1/web/search", KEY), ("tavily", "tavily/search", KEY)],
)
async def test_a_provider_is_stored_tested_and_offered(
    start_gateway: GatewayFactory, tenant: str, provider: str, path: str, key: str | None
) -> None:
    """A change of other parts of the policy keeps it; a failed test says why, and shows no key."""
    operator = key_of("alice", tenant, rights=("operator", "admin", "chat"))
    served_there = SearchProviders()
    async with (
        start_gateway(keys=(operator,)) as served,
        served.http as http,
        web_server(served_there.app()) as port,
    ):
        http.headers.update(bearer(TOKENS["alice"]))
        body = {"provider": provider, "url": f"http://127.0.0.1:{port}/{path}"}
        stored = await http.put(PROVIDER, json=body | ({"api_key": key} if key else {}))
        works = (await http.post(f"{PROVIDER}/test")).json()
        await http.put("/context/policy", json={"rules": []})
        again = await http.put(PROVIDER, json=body)
        tools = {one["name"] for one in (await http.get("/context/tools")).json()["items"]}
        served_there.exhausted = True
        fails = (await http.post(f"{PROVIDER}/test")).json()
        secrets = (await http.get("/context/secrets")).json()["items"]
        await http.delete(PROVIDER)
        gone = (await http.get(PROVIDER)).json()
        left = (await http.get("/context/secrets")).json()["items"]
    assert stored.status_code == 200 and KEY not in stored.text
    assert (again.json()["provider"], again.json()["has_key"]) == (provider, key is not None)
    assert works["problem"] is None and works["results"] > 0
    assert "web_search" in tools
    assert fails["problem"] and KEY not in fails["problem"]
    assert [one["servers"] for one in secrets] == ([["web_search"]] if key else [])
    assert (gone["provider"], left) == (None, [])


async def test_wrong_choices_are_refused_and_internal_addresses_are_not_requested(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    admin = key_of("alice", tenant, rights=("admin", "chat"))
    providers = SearchProviders()
    async with (
        start_gateway(keys=(admin,)) as served,
        served.http as http,
        web_server(providers.app()) as port,
    ):
        http.headers.update(bearer(TOKENS["alice"]))
        without_url = await http.put(PROVIDER, json={"provider": "searxng"})
        without_key = await http.put(PROVIDER, json={"provider": "brave"})
        short = await http.put(PROVIDER, json={"provider": "brave", "api_key": "geheim"})
        assistant = await http.post(
            "/context/assistants", json={"tools": {"search": {"provider": "brave", "secret": "OTHER"}}}
        )
        await http.put(PROVIDER, json={"provider": "searxng", "url": f"http://127.0.0.1:{port}/search"})
        internal = (await http.post(f"{PROVIDER}/test")).json()
        await http.put(PROVIDER, json={"provider": "brave", "url": "http://example.org/", "api_key": KEY})
        plain = (await http.post(f"{PROVIDER}/test")).json()
    assert [one.status_code for one in (without_url, without_key, short, assistant)] == [400] * 4
    assert "url" in without_url.text and "api_key" in without_key.text and "geheim" not in short.text
    assert "tools.search" in assistant.text
    assert internal["problem"] and providers.queries == []
    assert "https" in plain["problem"]


async def test_the_operators_choice_comes_first_and_is_named(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    settings = {"default": {"provider": "brave", "key": KEY}, "named": {new_id("t"): None}}
    async with (
        start_gateway(keys=(key_of("alice", tenant, rights=("admin",)),), search=settings) as served,
        served.http as http,
    ):
        http.headers.update(bearer(TOKENS["alice"]))
        read = (await http.get(PROVIDER)).json()
        refused = await http.put(PROVIDER, json={"provider": "searxng", "url": "https://a.example/search"})
    assert (read["provider"], read["source"]) == ("brave", "settings")
    assert read["setting"] == "BANKSMAN_SEARCH__DEFAULT" and KEY not in json.dumps(read)
    assert refused.status_code == 409 and "BANKSMAN_SEARCH__DEFAULT" in refused.text


async def test_services_on_nats_choose_a_provider(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async def request(operation: str, **body: Any) -> Any:
        subject = subjects.api(tenant, "search_provider", operation)
        return json.loads(await bus.request(subject, json.dumps(body).encode(), 15))

    async with start_gateway():
        made = await request("set", provider="tavily", api_key=KEY)
        read = await request("read")
        gone = await request("delete")
        missing = await request("test")
    assert made == read and (read["provider"], read["has_key"]) == ("tavily", True)
    assert gone == {"id": tenant}
    assert missing["code"] == "not_found"

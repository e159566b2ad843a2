"""Servers of models as they are: slow, wrong, behind a page, without `/v1`, with thousands of models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from tests.gateway.identity.test_api_keys import bearer

SERVERS = "/context/model-servers"
KEY = "key-of-the-tenant-1234"
MANY = [{"id": f"model-{number}"} for number in range(5_000)]
LISTS: Mapping[str, Any] = {
    "/openai": {"data": [{"id": "one"}]},
    "/together": [{"id": "one", "type": "chat"}],
    "/many": {"data": MANY},
    "/page": "<!DOCTYPE html><html><body>Sign in</body></html>",
    "/odd": {"models": ["one"]},
}


@asynccontextmanager
async def models() -> AsyncGenerator[str]:
    """A server with one list of models for each path."""

    async def handle(request: web.Request) -> web.StreamResponse:
        path = request.path.removesuffix("/models")
        if path == "/slow":
            await asyncio.sleep(3_600)
        if path == "/locked" and request.headers.get("authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "No key."}}, status=401)
        if path == "/moved":
            raise web.HTTPPermanentRedirect("/openai/models")
        if path not in LISTS:
            return web.Response(status=404, text="404 page not found")
        found = LISTS[path]
        return web.Response(text=found if isinstance(found, str) else json.dumps(found))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def result_of(http: httpx.AsyncClient, base_url: str, **body: str) -> dict[str, Any]:
    http.headers.update(bearer(TOKENS["bob"]))
    put = await http.put(f"{SERVERS}/mine", json={"base_url": base_url, **body})
    assert put.status_code == 200, put.text
    return (await http.post(f"{SERVERS}/mine/test", timeout=30)).json()


async def test_every_kind_of_list_is_read_or_its_problem_named(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    operator = key_of("bob", tenant, rights=("operator", "admin", "chat"))
    async with models() as url, start_gateway(keys=(operator,)) as served, served.http as http:
        found = {path: await result_of(http, f"{url}{path}") for path in (*LISTS, "/openai/", "/moved", "")}
        locked = await result_of(http, f"{url}/locked")
        opened = await result_of(http, f"{url}/locked", api_key=KEY)

    names = {path: one["models"] for path, one in found.items() if one["problem"] is None}
    assert names == {
        "/openai": ["one"],
        "/openai/": ["one"],
        "/together": ["one"],
        "/many": [one["id"] for one in MANY[:200]],
    }
    assert "no list of models: <!DOCTYPE html>" in found["/page"]["problem"]
    assert 'no list of models: {"models"' in found["/odd"]["problem"]
    assert "308" in found["/moved"]["problem"]
    assert "need /v1 in base_url; the server returned 404" in found[""]["problem"]
    assert "401" in locked["problem"] and "No key." in locked["problem"]
    assert "404" in opened["problem"] and KEY not in opened["problem"]


@pytest.mark.timeout(60)
async def test_a_server_that_does_not_reply_is_given_up(start_gateway: GatewayFactory, tenant: str) -> None:
    operator = key_of("bob", tenant, rights=("operator", "admin", "chat"))
    async with models() as url, start_gateway(keys=(operator,)) as served, served.http as http:
        assert (await result_of(http, f"{url}/slow"))["problem"] == "no response in time"


async def test_passthrough_serves_models_beyond_the_stored_names(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    """Only 200 names of a list are stored."""
    operator = key_of("bob", tenant, rights=("operator", "admin", "chat"))
    async with models() as url, start_gateway(keys=(operator,)) as served, served.http as http:
        await result_of(http, f"{url}/many")
        request = {"messages": [{"role": "user", "content": "Hi"}]}
        replies = [
            await http.post("/v1/chat/completions", json={**request, "model": f"model-{number}"})
            for number in (3, 4_999)
        ]
        few = await result_of(http, f"{url}/openai")
        foreign = await http.post("/v1/chat/completions", json={**request, "model": "model-4999"})

    # The server of this test has no such path, but it was asked.
    assert [one.text for one in replies] == ["404 page not found"] * 2
    assert few["problem"] is None
    assert foreign.status_code == 404 and foreign.text != "404 page not found"

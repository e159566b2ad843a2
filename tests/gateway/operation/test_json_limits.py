"""JSON of clients is bounded and charged before it is parsed, on every interface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from tests.gateway.conftest import TOKENS, GatewayFactory, Served, key_of
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.json_text import MAX_VALUES

MIB = 1024 * 1024
WIDE = b'{"title": [%s0]}' % (b"[]," * 50_000)
KEYS = b"{%s}" % b",".join(b'"k%d":0' % number for number in range(MAX_VALUES + 1))
DEEP = b"[" * 160_000
TOO_MANY = f"at most {MAX_VALUES} values"


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body[:MIB]
    yield body[MIB:]


@pytest.mark.parametrize("body", [WIDE, KEYS, DEEP, b'{"title": "%s' % (b'","' * 60_000)])
async def test_json_with_too_many_values_is_refused_on_every_interface(
    gateway: Served, bus: Bus, tenant: str, body: bytes
) -> None:
    subject = subjects.api(tenant, "conversation", "create")
    async with gateway.http as http, gateway.socket() as socket:
        over_http = await http.post("/context/conversations", content=body)
        await socket.connection.send(b'{"type":"ping","id":"f1","t":%s}' % body, text=True)
        over_websocket = await socket.until(lambda frame: frame["type"] == "error")
        pong = await socket.request("ping")
        over_nats = json.loads(await bus.request(subject, body, WAIT_TIMEOUT_S))
    assert over_http.status_code == 400 and TOO_MANY in over_http.json()["error"]["message"]
    assert (over_websocket["reply_to"], over_websocket["code"]) == ("f1", "bad_request")
    assert TOO_MANY in over_websocket["message"] and pong["type"] == "pong"
    assert over_nats["code"] == "bad_request" and TOO_MANY in over_nats["message"]


async def test_punctuation_in_texts_does_not_count_as_values(gateway: Served) -> None:
    text = '[{"a", \\' * 20_000
    async with gateway.http as http, gateway.socket() as socket:
        over_http = await http.post("/v1/chat", json={"content": text})
        sent = await socket.request("chat.send", conversation_id=await socket.create(), content=text)
    assert (over_http.status_code, sent["type"]) == (202, "ack")


async def test_a_body_has_at_most_one_mib_if_its_operation_declares_no_more(gateway: Served) -> None:
    body = b'{"title": "%s"}' % (b"x" * MIB)
    async with gateway.http as http:
        small = await http.post("/context/conversations", content=body)
        in_pieces = await http.post("/context/conversations", content=_chunks(body))
        large = await http.post("/agui", content=body)
        too_large = await http.post("/agui", content=body + b" " * 9 * MIB)
        document = (await http.get("/openapi.json")).json()["paths"]
    assert [small.status_code, in_pieces.status_code] == [413, 413]
    assert (large.status_code, too_large.status_code) == (400, 413)
    assert document["/context/conversations"]["post"]["x-body-limit"] == "small"
    assert document["/agui"]["post"]["x-body-limit"] == "large"


async def test_a_tenant_that_sends_much_json_is_refused_and_another_is_not(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    keys = (key_of("alice", tenant), key_of("bob", new_id("t")))
    heavy = {"title": "x", "settings": {"variables": {"numbers": list(range(MAX_VALUES // 2))}}}
    async with start_gateway(keys=keys, json_bytes_per_s=50_000) as gateway, gateway.http as http:
        alice, bob = ({"authorization": f"Bearer {TOKENS[name]}"} for name in ("alice", "bob"))
        first = await http.post("/context/conversations", json=heavy, headers=alice)
        again = await http.post("/context/conversations", json={"title": "x"}, headers=alice)
        forwarded = await http.post("/v1/chat/completions", json={"model": "m"}, headers=alice)
        subject = subjects.api(tenant, "conversation", "create")
        over_nats = json.loads(await bus.request(subject, b"{}", WAIT_TIMEOUT_S))
        async with gateway.socket("bob") as socket:
            allowed = await socket.request("conversation.create", title="x")
        async with gateway.socket("alice") as socket:
            over_websocket = await socket.request("ping")
        other = await http.post("/context/conversations", json={"title": "x"}, headers=bob)
    assert (first.status_code, again.status_code, forwarded.status_code) == (201, 429, 429)
    assert int(again.headers["retry-after"]) > 10
    assert (over_nats["code"], over_websocket["code"]) == ("rate_limited", "rate_limited")
    assert over_websocket["retry_after_s"] > 10
    assert (allowed["type"], other.status_code) == ("ack", 201)

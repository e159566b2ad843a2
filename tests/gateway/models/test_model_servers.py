"""Which servers of models an administrator of a tenant may set, over HTTP and NATS."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from tests.gateway.identity.test_api_keys import bearer

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import MODEL_SERVERS, kv_stream, kv_subject
from banksman.contracts import subjects
from banksman.contracts.ids import new_id

SERVERS = "/context/model-servers"
KEY = "key-of-the-tenant-1234"
OWN = "https://internal.example.org/v1"


async def test_administrators_name_hosts_of_vendors_and_operators_any_host(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    admin = key_of("alice", tenant, rights=("admin",))
    operator = key_of("bob", tenant, rights=("operator",))
    async with start_gateway(keys=(admin, operator)) as served, served.http as http:
        http.headers.update(bearer(TOKENS["alice"]))
        vendor = await http.put(f"{SERVERS}/openai", json={"api_key": KEY})
        refused = [
            await http.put(f"{SERVERS}/mine", json={"base_url": url})
            for url in (OWN, "http://api.openai.com/v1", "https://api.openai.com.example.org/v1")
        ]
        unknown = await http.put(f"{SERVERS}/mine", json={"api_key": KEY})
        short = await http.put(f"{SERVERS}/openai", json={"api_key": "geheim"})
        any_host = await http.put(f"{SERVERS}/mine", json={"base_url": OWN}, headers=bearer(TOKENS["bob"]))

    assert (vendor.status_code, vendor.json()["base_url"]) == (200, "https://api.openai.com/v1")
    assert [one.status_code for one in refused] == [403, 403, 403]
    assert "base_url" in refused[0].text and "api.openai.com" in refused[0].text
    assert unknown.status_code == 400 and "base_url" in unknown.text
    assert short.status_code == 400 and "geheim" not in short.text
    assert any_host.status_code == 200


async def test_another_tenant_neither_lists_nor_deletes_a_server(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    admin = key_of("alice", tenant, rights=("admin",))
    other = key_of("bob", new_id("t"), rights=("admin",))
    async with start_gateway(keys=(admin, other)) as served, served.http as http:
        await http.put(f"{SERVERS}/openai", json={"api_key": KEY}, headers=bearer(TOKENS["alice"]))
        theirs = await http.get(SERVERS, headers=bearer(TOKENS["bob"]))
        stolen = await http.delete(f"{SERVERS}/openai", headers=bearer(TOKENS["bob"]))
        stored = await last_message(
            bus, kv_stream(MODEL_SERVERS), kv_subject(MODEL_SERVERS, f"{tenant}.openai")
        )

    assert [one for one in theirs.json()["items"] if one["source"] == "tenant"] == []
    assert stolen.status_code == 404
    assert stored is not None and KEY.encode() not in stored.data


async def test_services_on_nats_set_list_and_delete_servers(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async def request(*tokens: str, **body: Any) -> Any:
        subject = subjects.api(tenant, "model_server", *tokens)
        return json.loads(await bus.request(subject, json.dumps(body).encode(), 15))

    async with start_gateway():
        made = await request("set", "openai", api_key=KEY)
        listed = await request("list")
        gone = await request("delete", "openai")
        missing = await request("test", "openai")

    assert made["name"] == "openai" and KEY not in json.dumps(made)
    assert [one["name"] for one in listed["items"] if one["source"] == "tenant"] == ["openai"]
    assert gone == {"id": "openai"}
    assert missing["code"] == "not_found"

"""Secrets of a tenant are set, listed by name and deleted over HTTP and NATS."""

from __future__ import annotations

import json
from typing import Any

import httpx
from tests.gateway.conftest import TOKENS, GatewayFactory, Served, key_of
from tests.gateway.identity.test_api_keys import bearer

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import MCP, TENANT_SECRETS, kv_stream, kv_subject
from banksman.contracts import subjects
from banksman.contracts.ids import new_id

SECRETS = "/context/secrets"
VALUE = "a-value-that-nobody-reads"


async def test_a_secret_is_set_replaced_listed_by_name_and_deleted_and_no_response_has_its_value(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    admin = key_of("alice", tenant, rights=("chat", "approve", "admin"))
    other = key_of("bob", new_id("t"), rights=("admin",))
    async with start_gateway(keys=(admin, other)) as served, served.http as http:
        http.headers.update(bearer(TOKENS["alice"]))
        created = await http.put(f"{SECRETS}/API_TOKEN", json={"value": "first-value"})
        replaced = await http.put(f"{SECRETS}/API_TOKEN", json={"value": VALUE})
        listed = await http.get(SECRETS)
        theirs = await http.get(SECRETS, headers=bearer(TOKENS["bob"]))
        stolen = await http.delete(f"{SECRETS}/API_TOKEN", headers=bearer(TOKENS["bob"]))
        stored = await last_message(
            bus, kv_stream(TENANT_SECRETS), kv_subject(TENANT_SECRETS, f"{tenant}.API_TOKEN")
        )
        wrong = await http.put(f"{SECRETS}/2nd", json={"value": VALUE})
        short = await http.put(f"{SECRETS}/SHORT", json={"value": "geheim"})
        deleted = await http.delete(f"{SECRETS}/API_TOKEN")
        again = await http.delete(f"{SECRETS}/API_TOKEN")

    assert (created.status_code, replaced.status_code, deleted.status_code) == (200, 200, 204)
    assert [secret["name"] for secret in listed.json()["items"]] == ["API_TOKEN"]
    assert replaced.json()["created_at"] == created.json()["created_at"] < replaced.json()["updated_at"]
    assert (theirs.json()["items"], stolen.status_code) == ([], 404)
    assert stored is not None and VALUE.encode() not in stored.data
    assert not any(VALUE in response.text for response in (created, replaced, listed))
    assert wrong.status_code == 400 and "name: expected a letter" in wrong.text
    assert short.status_code == 400 and "geheim" not in short.text
    assert again.status_code == 404


async def test_services_on_nats_set_list_and_delete_secrets(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async def request(*tokens: str, **body: Any) -> Any:
        reply = await bus.request(subjects.api(tenant, "secret", *tokens), json.dumps(body).encode(), 10)
        return json.loads(reply)

    async with start_gateway():
        made = await request("set", "API_TOKEN", value=VALUE)
        listed = await request("list")
        gone = await request("delete", "API_TOKEN")
        missing = await request("delete", "API_TOKEN")

    assert made["name"] == "API_TOKEN" and made["updated_by"] == "nats" and VALUE not in json.dumps(made)
    assert [secret["name"] for secret in listed["items"]] == ["API_TOKEN"]
    assert gone == {"id": "API_TOKEN"}
    assert (missing["type"], missing["code"]) == ("error", "not_found")


async def test_the_secrets_of_an_mcp_server_are_encrypted_and_an_unset_one_is_named(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    headers = {"Authorization": f"Bearer {VALUE}", "X-Key": "${secret.UNSET}"}
    transport = {"type": "http", "url": "https://mcp.example.org/mcp", "headers": headers}
    async with start_gateway() as served, served.http as http:
        created = await http.post("/context/mcp-servers", json={"id": "issues", "transport": transport})
    stored = await last_message(bus, kv_stream(MCP), kv_subject(MCP, f"{tenant}.issues"))

    assert created.status_code == 201, created.text
    assert created.json()["problem"] == "the secret 'UNSET' is not set: `banksman secrets set` sets it"
    assert created.json()["transport"]["secrets"] == ["Authorization", "X-Key"]
    assert stored is not None and b"Authorization" in stored.data
    # The problem names the secret, as the list of secrets does; the value of the header is encrypted.
    assert VALUE.encode() not in stored.data and b"secret.UNSET" not in stored.data


async def test_a_replaced_secret_stays_limited_to_its_named_servers(gateway: Served) -> None:
    async def problem(http: httpx.AsyncClient, server: str) -> str | None:
        transport = {"type": "http", "url": "https://mcp.example.org/mcp", "headers": {"X": "${secret.KEY}"}}
        created = await http.post("/context/mcp-servers", json={"id": server, "transport": transport})
        return created.json()["problem"]

    async with gateway.http as http:
        named = await http.put(f"{SECRETS}/KEY", json={"value": VALUE, "servers": ["mcp:issues", "clock"]})
        again = await http.put(f"{SECRETS}/KEY", json={"value": VALUE + "2"})
        wrong = [
            await http.put(f"{SECRETS}/KEY", json={"value": VALUE, "servers": servers})
            for servers in ([], ["a b"], ["http:issues"], "clock")
        ]
        listed = (await http.get(SECRETS)).json()["items"]
        other, issues = await problem(http, "wiki"), await problem(http, "issues")

    assert named.json()["servers"] == again.json()["servers"] == ["mcp:issues", "clock"]
    assert [response.status_code for response in wrong] == [400] * 4
    assert listed[0]["servers"] == ["mcp:issues", "clock"]
    assert other == "the secret 'KEY' is not for the server 'mcp:wiki': an administrator named others"
    assert issues is not None and "KEY" not in issues, "it is used, and no runner is there to connect"

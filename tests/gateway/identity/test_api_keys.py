"""API keys that clients create, list and revoke."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import TOKENS, GatewayFactory, Served, Socket, key_of
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S
from websockets.exceptions import ConnectionClosed

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import KEYS, kv_stream, kv_subject
from banksman.contracts import subjects
from banksman.contracts.ids import digest, new_id

KEYS_PATH = "/context/keys"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def administered(tenant: str) -> dict[str, object]:
    """Return the settings of a gateway: alice is the admin of one tenant, bob an operator."""
    admin = key_of("alice", tenant, rights=("chat", "approve", "admin"))
    return {"keys": (admin, key_of("bob", new_id("t"), rights=("operator",)))}


async def test_a_key_is_shown_once_stored_as_its_digest_and_revoked_at_every_gateway(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    """A revoked key opens nothing, and the websockets that it opened are closed with 4401."""
    settings = administered(tenant)
    async with start_gateway(**settings) as one, start_gateway(**settings) as other:
        one.headers = bearer(TOKENS["alice"])
        async with one.http as http, other.http as second:
            created = (await http.post(KEYS_PATH, json={"user": "ann", "name": "laptop"})).json()
            ann = bearer(created["key"])
            listing = "/context/conversations"
            await eventually(lambda: opened(second, listing, ann))
            me = await http.get(f"{KEYS_PATH}/{created['id']}")
            all_keys = (await http.get(KEYS_PATH)).json()["items"]
            stored = await last_message(bus, kv_stream(KEYS), kv_subject(KEYS, f"{tenant}.{created['id']}"))
            forbidden = await second.get(KEYS_PATH, headers=ann)
            async with other.raw() as connection:
                socket = Socket(connection)
                await socket.request("hello", token=created["key"])
                revoked = await http.delete(f"{KEYS_PATH}/{created['id']}")
                with pytest.raises(ConnectionClosed) as closed:
                    async with asyncio.timeout(WAIT_TIMEOUT_S):
                        await connection.recv()
            refused = await second.get(listing, headers=ann)
    assert created["key"].startswith("bk-")
    assert stored is not None and created["key"].encode() not in stored.data
    assert [key["id"] for key in all_keys] == [created["id"]]
    assert me.json().items() >= {"user": "ann", "rights": ["chat", "approve"], "created_by": "alice"}.items()
    for shown in (me.json(), *all_keys):
        assert "key" not in shown and "sha256" not in shown
    assert "sha256" not in created
    assert (forbidden.status_code, revoked.status_code, refused.status_code) == (403, 204, 401)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401


async def test_an_invitation_opens_nothing_and_is_exchanged_once_for_the_key(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    """Its text may travel in a link, because a claimed invitation is worth nothing to others."""
    until = (datetime.now(UTC) + timedelta(days=7)).isoformat()
    wanted = {"user": "ann", "rights": ["chat"], "claim_by": until}
    async with start_gateway(**administered(tenant)) as served, served.http as http:
        http.headers.update(bearer(TOKENS["alice"]))
        invited = (await http.post(KEYS_PATH, json=wanted)).json()
        listed = (await http.get(KEYS_PATH)).json()["items"]
        as_key = await http.get("/context/conversations", headers=bearer(invited["key"]))
        async with asyncio.TaskGroup() as group:
            claims = [
                group.create_task(http.post("/v1/invitations", json={"text": invited["key"]}))
                for _ in range(2)
            ]
        both = [claim.result() for claim in claims]
        [claimed] = [one.json() for one in both if one.status_code == 200]
        opened_now = await http.get("/context/conversations", headers=bearer(claimed["key"]))
        after = (await http.get(KEYS_PATH)).json()["items"]
        expired = await http.post(KEYS_PATH, json={**wanted, "claim_by": "2026-01-01T00:00:00Z"})
        late = await http.post("/v1/invitations", json={"text": expired.json()["key"]})
        revoked = (await http.post(KEYS_PATH, json=wanted)).json()
        await http.delete(f"{KEYS_PATH}/{revoked['id']}")
        gone = await http.post("/v1/invitations", json={"text": revoked["key"]})

    assert invited["key"].startswith("bi-") and [one["id"] for one in listed] == [invited["id"]]
    assert "claim_by" in listed[0] and "claim_by" not in after[0]
    assert (as_key.status_code, sorted(one.status_code for one in both)) == (401, [200, 404])
    assert (claimed["user"], claimed["rights"], opened_now.status_code) == ("ann", ["chat"], 200)
    assert (late.status_code, gone.status_code) == (404, 404)


async def test_keys_are_administered_over_nats_for_the_tenant_of_the_subject_alone(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async def request(action: str, *named: str, **body: Any) -> dict[str, Any]:
        subject = subjects.api(tenant, *action.split(), *named)
        return json.loads(await bus.request(subject, json.dumps(body).encode(), WAIT_TIMEOUT_S))

    async with start_gateway(**administered(tenant)) as served, served.http as http:
        created = await request("key create", user="ann")
        foreign = await request("key create", user="ann", tenant=new_id("t"))
        operator = await request("key create", user="ann", rights=["operator"])
        opened_by_it = await http.get("/context/conversations", headers=bearer(created["key"]))
        listed = await request("key list")
        read = await request("key read", created["id"])
        revoked = await request("key revoke", created["id"])
        refused = await http.get("/context/conversations", headers=bearer(created["key"]))
    assert (created["tenant"], created["created_by"]) == (tenant, "nats")
    assert (foreign["code"], operator["code"]) == ("forbidden", "forbidden")
    assert listed["items"] == [read] and read.keys().isdisjoint({"key", "sha256"})
    assert (opened_by_it.status_code, refused.status_code) == (200, 401)
    assert revoked == {"id": created["id"]}


async def test_the_first_key_is_created_without_one_and_from_then_on_each_request_needs_a_key(
    start_gateway: GatewayFactory, tmp_path: Path
) -> None:
    """The first key can create others. Gateways that share the file of keys then need a key too."""
    settings = {"keys_file": tmp_path / "keys" / "api-keys.json"}
    async with start_gateway(**settings) as one, start_gateway(**settings) as other:
        async with one.http as http, other.http as second:
            useless = await http.post(KEYS_PATH, json={"user": "ann"})
            first = await http.post(KEYS_PATH, json={"user": "ann", "rights": ["chat", "approve", "admin"]})
            without = [(await client.get("/context/conversations")).status_code for client in (http, second)]
            ann = bearer(first.json()["key"])
            invited = await second.post(KEYS_PATH, json={"user": "bob"}, headers=ann)
            listed = [(await client.get(KEYS_PATH, headers=ann)).json()["items"] for client in (http, second)]
            path = f"{KEYS_PATH}/{first.json()['id']}"
            kept = await http.delete(path, headers=ann)
            # The file alone decides about its key: NATS accepts it no longer either.
            other_key = {**json.loads(settings["keys_file"].read_text())[0], "sha256": digest(b"another")}
            settings["keys_file"].write_text(json.dumps([other_key]))
            removed = await http.get("/context/conversations", headers=ann)
            gone = await http.get(path, headers=bearer("another"))
    assert [[key["user"] for key in keys] for keys in listed] == [["ann", "bob"]] * 2
    assert (kept.status_code, removed.status_code, gone.status_code) == (409, 401, 404)
    assert "banksman keys rm" in kept.json()["error"]["message"]
    assert (useless.status_code, first.status_code, invited.status_code) == (409, 201, 201)
    assert without == [401, 401]
    assert first.json()["key"] not in settings["keys_file"].read_text()
    assert settings["keys_file"].stat().st_mode & 0o777 == 0o600


async def test_a_key_opens_nothing_after_its_expiry(start_gateway: GatewayFactory, tenant: str) -> None:
    async with start_gateway(**administered(tenant)) as gateway:
        gateway.headers = bearer(TOKENS["alice"])
        async with gateway.http as http:
            past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
            created = (await http.post(KEYS_PATH, json={"user": "ann", "expires_at": past})).json()
            expired = await http.get("/context/conversations", headers=bearer(created["key"]))
    assert (expired.status_code, "API key" in expired.text) == (401, True)


async def test_only_an_operator_grants_the_operator_right_and_administers_other_tenants(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    async with start_gateway(**administered(tenant)) as gateway:
        alice, bob = bearer(TOKENS["alice"]), bearer(TOKENS["bob"])
        body = {"user": "ann", "rights": ["operator"]}
        async with gateway.http as http:
            granted = await http.post(KEYS_PATH, json=body, headers=alice)
            foreign = await http.get(f"{KEYS_PATH}?tenant=another", headers=alice)
            created = await http.post(f"{KEYS_PATH}?tenant={tenant}", json=body, headers=bob)
            own = (await http.get(KEYS_PATH, headers=alice)).json()["items"]
    assert (granted.status_code, foreign.status_code, created.status_code) == (403, 403, 201)
    assert [(key["tenant"], key["rights"], key["created_by"]) for key in own] == [
        (tenant, ["operator"], "bob")
    ]


async def test_a_gateway_without_a_file_of_keys_creates_no_first_key(gateway: Served) -> None:
    """It would still serve any client, so the key would only seem to protect it."""
    async with gateway.http as http:
        refused = await http.post(KEYS_PATH, json={"user": "ann", "rights": ["admin"]})
    assert refused.status_code == 409
    assert "BANKSMAN_GATEWAY__KEYS_FILE" in refused.json()["error"]["message"]


async def opened(http: httpx.AsyncClient, path: str, headers: dict[str, str]) -> bool:
    return (await http.get(path, headers=headers)).status_code == 200

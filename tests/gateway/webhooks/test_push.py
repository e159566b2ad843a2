"""Web Push: approval requests reach the devices of those who may decide them, and only they can read them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Served, key_of
from tests.support.polling import eventually
from tests.support.push_service import Browser, PushService, base64url, from_base64url, push_service

from banksman.contracts.approvals import ApprovalEscalated, ApprovalRequested
from banksman.contracts.assistants import ApprovalTerms, Escalation
from banksman.contracts.events import Event, EventBody
from banksman.contracts.work import ApprovalRequest
from banksman.gateway.webhooks.devices import MAX_DEVICES_PER_USER
from banksman.gateway.webhooks.queueing import is_for
from banksman.gateway.webhooks.sending import encrypted
from banksman.gateway.webhooks.store import PushKeys

PATH = "/context/push/devices"
ORIGIN = "https://agents.example"


@pytest.fixture
async def service() -> AsyncGenerator[PushService]:
    async with push_service() as service:
        yield service


@pytest.fixture
async def sending(start_gateway: GatewayFactory, service: PushService, tenant: str) -> AsyncGenerator[Served]:
    """A gateway with two approvers of one tenant, whose messages may reach the push service."""
    keys = (
        key_of("alice", tenant, rights=("chat", "approve", "admin")),
        key_of("bob", tenant, rights=("approve",)),
        key_of("reader", tenant, rights=("chat",)),
    )
    async with start_gateway(webhook_addresses=(service.address,), keys=keys) as served:
        served.headers = {"authorization": f"Bearer {TOKENS['alice']}"}
        yield served


def as_user(user: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[user]}"}


async def register(
    http: httpx.AsyncClient, service: PushService, name: str, browser: Browser, **headers: str
) -> dict[str, Any]:
    body = {"endpoint": service.endpoint(name), "keys": browser.keys, "origin": ORIGIN}
    response = await http.put(PATH, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


async def requested(http: httpx.AsyncClient, agent: Agent, command: str = "ls") -> ApprovalRequest:
    conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
    await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
    start = await agent.started(conversation)
    await agent.begin(start)
    return await agent.request_approval(start, command)


async def test_a_request_is_encrypted_for_the_device_and_signed_for_its_push_service(
    sending: Served, service: PushService, agent: Agent
) -> None:
    """R13: the message shows the call, also a long one with characters that hide others."""
    browser = Browser()
    async with sending.http as http:
        offer = (await http.get("/context/push")).json()
        await register(http, service, "phone", browser)
        request = await requested(http, agent, "echo \u202e" + "\U0001f600" * 2_000)
        pushed = await service.message(1)
        listed = (await http.get("/context/webhooks")).json()["items"]
    message = browser.read(pushed.body)
    scheme, token, key = pushed.headers["authorization"].replace(",", "").split(" ")
    assert (scheme, key) == ("vapid", f"k={offer['public_key']}")
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), from_base64url(offer["public_key"]))
    audience = f"http://{service.address}"
    claims = jwt.decode(token.removeprefix("t="), point, algorithms=["ES256"], audience=audience)
    assert claims["sub"] == ORIGIN
    assert (pushed.headers["content-encoding"], pushed.headers["urgency"]) == ("aes128gcm", "high")
    assert len(pushed.headers["topic"]) == 32 and int(pushed.headers["ttl"]) > 0
    assert message | {"text": ""} == {
        "type": "approval.requested",
        "approval_id": request.approval_id,
        "calls": 1,
        "tool": "bash",
        "text": "",
    }
    assert message["text"].startswith("bash: echo \\u202e\U0001f600") and len(message["text"]) == 500
    # The subscription of a device is not listed among the webhooks of the tenant's administrators.
    assert listed == []


async def test_a_device_that_its_push_service_no_longer_knows_is_removed(
    sending: Served, service: PushService, agent: Agent
) -> None:
    service.statuses = {"lost": 410}
    async with sending.http as http:
        await register(http, service, "lost", Browser())
        await requested(http, agent)
        await service.message(1)
        await eventually(lambda: none_left(http))
        await register(http, service, "phone", Browser())
        await requested(http, agent)
        await service.message(2)
    assert [one.device for one in service.pushed] == ["lost", "phone"]


async def none_left(http: httpx.AsyncClient) -> bool:
    return (await http.get(PATH)).json()["items"] == []


async def test_a_device_belongs_to_one_user_who_may_approve_and_their_number_is_bounded(
    sending: Served, service: PushService
) -> None:
    browser = Browser()
    async with sending.http as http:
        first = await register(http, service, "0", browser)
        again = await register(http, service, "0", browser)
        for number in range(1, MAX_DEVICES_PER_USER + 1):
            await register(http, service, str(number), browser)
        mine = [one["id"] for one in (await http.get(PATH)).json()["items"]]
        stolen = await http.delete(f"/context/push/devices/{mine[0]}", headers=as_user("bob"))
        # Bob signs in to the browser of alice: her requests must not appear there any more.
        moved = await register(http, service, "1", browser, **as_user("bob"))
        left = [one["id"] for one in (await http.get(PATH)).json()["items"]]
        removed = await http.delete(f"{PATH}/{left[0]}")
        hidden = await http.get(f"/context/webhooks/{left[1]}")
        body = {"endpoint": service.endpoint("x"), "keys": browser.keys}
        reader = await http.put(PATH, json=body, headers=as_user("reader"))
    assert again == {**first, "expires_at": again["expires_at"]}
    assert len(mine) == MAX_DEVICES_PER_USER and first["id"] not in mine
    assert left == [one for one in mine if one != moved["id"]] and moved["id"] in mine
    statuses = (stolen.status_code, removed.status_code, hidden.status_code, reader.status_code)
    assert statuses == (404, 204, 404, 403)


async def test_a_device_gets_nothing_once_the_key_of_its_user_is_revoked(
    sending: Served, service: PushService, agent: Agent
) -> None:
    browser = Browser()
    async with sending.http as http:
        carol = (await http.post("/context/keys", json={"user": "carol", "rights": ["approve"]})).json()
        # Devices are sent to in the order in which they were registered.
        key = {"authorization": f"Bearer {carol['key']}"}
        await register(http, service, "carol", browser, **key)
        await register(http, service, "alice", browser)
        await requested(http, agent)
        both = {(await service.message(number)).device for number in (1, 2)}
        await http.delete(f"/context/keys/{carol['id']}")
        request = await requested(http, agent)
        last = await service.message(3)
        await requested(http, agent)
        await service.message(4)
    assert both == {"carol", "alice"}
    assert [one.device for one in service.pushed[2:]] == ["alice", "alice"]
    assert browser.read(last.body)["approval_id"] == request.approval_id


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "https://127.0.0.1/push"},
        {"endpoint": "http://push.example/x"},
        {"endpoint": "https://169.254.169.254/latest"},
        {"endpoint": "https://push.example\\@127.0.0.1/x"},
        {"endpoint": "https://\uff11\uff12\uff17.0.0.1/x"},
        {"keys": {"p256dh": base64url(b"\4" + b"x" * 64), "auth": base64url(b"a" * 16)}},
        {"keys": {"p256dh": "short", "auth": base64url(b"a" * 16)}},
        {"keys": {"p256dh": Browser().keys["p256dh"], "auth": "é"}},
        {"origin": "https://agents.example/path"},
    ],
)
async def test_a_subscription_with_a_private_address_or_wrong_keys_is_refused(
    gateway: Served, change: dict[str, Any]
) -> None:
    body = {"endpoint": "https://push.example/x", "keys": Browser().keys, **change}
    async with gateway.http as http:
        response = await http.put(PATH, json=body)
    assert response.status_code == 400, response.text


def test_the_encryption_gives_the_bytes_of_the_example_of_rfc_8291() -> None:
    private = int.from_bytes(from_base64url("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"))
    body = encrypted(
        PushKeys(
            p256dh="BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            auth="BTBZMqHH6r4Tts7J_aSIgg",
        ),
        b"When I grow up, I want to be a watermelon",
        from_base64url("DGv6ra1nlYgDCS1FRnbzlw"),
        ec.derive_private_key(private, ec.SECP256R1()),
    )
    assert base64url(body) == (
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6"
        "PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


def test_users_whom_an_escalation_names_are_notified_by_it_and_not_before() -> None:
    now = datetime.now(UTC)

    def event(data: EventBody) -> Event:
        return Event(seq=1, ts=now, data=data)

    def requested_of(users: tuple[str, ...] | None) -> Event:
        terms = None if users is None else ApprovalTerms(escalation=Escalation(after_s=60, users=users))
        return event(ApprovalRequested(approval_id="a", expires_at=now, items=(), terms=terms))

    def escalated(*users: str) -> Event:
        return event(ApprovalEscalated(approval_id="a", users=users, by="system"))

    assert [is_for("ann", one) for one in (requested_of(None), requested_of(()), requested_of(("bob",)))] == [
        True
    ] * 3
    assert not is_for("bob", requested_of(("bob",)))
    assert [is_for("bob", one) for one in (escalated("bob"), escalated(), escalated("ann"))] == [
        True,
        True,
        False,
    ]

"""MCP servers at which each user signs in: a call reaches them with the access of the user it is made for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import TOKENS
from tests.support.fixtures import SecuredNats, secured_server
from tests.support.forks import ServiceForks
from tests.tool_runner.service.processes import RunnerProcess
from tests.tool_runner.service.sign_in_platform import SERVER, Platform, platform_on, runner_on

from banksman.bus.jetstream import last_message
from banksman.bus.names import MCP_ACCOUNTS, kv_stream, kv_subject
from banksman.bus.storage.kv import Bucket
from banksman.contracts.calls import CallReply
from banksman.contracts.mcp import McpAccount, account_key

OWN = "/context/mcp-accounts"
SIGN_IN = f"{OWN}/issues/sign-in"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Generator[SecuredNats]:
    """A server with no other runners: a gateway chooses any."""
    with secured_server(tmp_path_factory.mktemp("keys")) as server:
        yield server


@pytest.fixture(scope="module")
def runner(secured: SecuredNats, forks: ServiceForks) -> Generator[RunnerProcess]:
    with runner_on(secured, forks) as started:
        yield started


@pytest.fixture
async def platform(secured: SecuredNats, runner: RunnerProcess) -> AsyncGenerator[Platform]:
    """A platform on which each user signs in at the server `issues`, which alice administers."""
    async with platform_on(secured, runner) as served:
        created = await served.http.post("/context/mcp-servers", json={**served.issues, "sign_in": "user"})
        assert created.status_code == 201, created.text
        assert (created.json()["needs_sign_in"], created.json()["problem_code"]) == (True, "sign_in")
        await served.signed_in()
        await served.approved()
        yield served


def key(user: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[user]}"}


async def asked(platform: Platform, user: str, method: str, path: str, **body: Any) -> httpx.Response:
    """Send a request of a user, whose browser keeps no cookie."""
    async with httpx.AsyncClient(base_url=platform.http.base_url, verify=False, timeout=30) as http:
        return await http.request(method, path, headers=key(user), json=body or None)


async def signs_in(platform: Platform, user: str, **body: Any) -> httpx.Response:
    """Sign in as a user, whose account at the vendor has the same name; return what the browser shows."""
    platform.remote.authorizations.account = user
    begun = await asked(platform, user, "POST", SIGN_IN, **body)
    assert begun.status_code == 200, begun.text
    return await platform.returned(begun.json()["url"], begun.cookies)


async def accounts(platform: Platform, user: str) -> list[dict[str, Any]]:
    return (await asked(platform, user, "GET", OWN)).json()["items"]


async def account(platform: Platform, user: str) -> McpAccount | None:
    bucket = Bucket(platform.operator, MCP_ACCOUNTS, McpAccount)
    entry = await bucket.get(account_key(platform.owner.tenant, "issues", user))
    return entry and entry.value


async def expired(platform: Platform, user: str) -> None:
    """Let the stored token of a user be an expired one."""
    bucket = Bucket(platform.operator, MCP_ACCOUNTS, McpAccount)
    entry = await bucket.get(account_key(platform.owner.tenant, "issues", user))
    assert entry is not None and entry.value.signed_in is not None
    past = {"expires_at": datetime.now(UTC) - timedelta(seconds=60)}
    signed_in = entry.value.signed_in.model_copy(update=past)
    await bucket.put(entry.key, entry.value.model_copy(update={"signed_in": signed_in}))


async def test_calls_reach_a_server_with_the_access_of_the_user_they_are_made_for(
    platform: Platform, runner: RunnerProcess
) -> None:
    before = await accounts(platform, "carol")
    shown = await signs_in(platform, "carol")
    of_carol, of_dan = await accounts(platform, "carol"), await accounts(platform, "dan")
    results = [await platform.called(user="carol"), await platform.called(user="alice")]
    results += [await platform.called(platform.workflows, user="carol")]
    refused = [(await platform.send(user=user))[0] for user in ("dan", "")]
    key_of_carol = account_key(platform.owner.tenant, "issues", "carol")
    stored = await last_message(
        platform.operator, kv_stream(MCP_ACCOUNTS), kv_subject(MCP_ACCOUNTS, key_of_carol)
    )
    trail = (await platform.http.get("/v1/audit")).text

    assert (before[0]["id"], before[0]["needs_sign_in"], before[0]["signed_in"]) == ("issues", True, None)
    assert "signed in at the MCP server issues" in shown.text
    assert (of_carol[0]["needs_sign_in"], of_carol[0]["signed_in"]["user"]) == (False, "carol")
    assert of_dan == before
    assert platform.remote.callers == ["carol", "ada", "carol"]
    assert [result.is_error for result in results] == [False] * 3
    for reply, user in zip(refused, ("dan", ""), strict=True):
        assert reply is not None and (reply.answer, reply.sign_in) == ("refused", True)
        assert f"needs a sign-in by the user '{user}'" in str(reply.reason)
        assert "banksman mcp sign-in issues --own" in str(reply.reason)
    assert stored is not None
    seen = [shown.text, json.dumps(of_carol), str(results), trail, stored.data.decode(), runner.log]
    issued = platform.remote.authorizations.issued
    assert [token for token in issued for text in seen if token in text] == []


async def test_users_neither_see_nor_use_nor_remove_the_sign_ins_of_others(platform: Platform) -> None:
    await signs_in(platform, "carol")
    begun = (await asked(platform, "carol", "POST", SIGN_IN)).json()["url"]
    address = str((await platform.returned(begun, httpx.Cookies())).url)
    dans = (await asked(platform, "dan", "POST", SIGN_IN)).cookies
    stolen = await platform.returned(begun, dans)
    finished = [
        await asked(platform, user, "POST", f"{SIGN_IN}/finish", url=address) for user in ("dan", "bob")
    ]
    by_admin = await platform.http.post(f"{SERVER}/sign-in/finish", json={"url": address})
    removed = [await asked(platform, user, "DELETE", SIGN_IN) for user in ("bob", "dan")]
    removed_again = await asked(platform, "dan", "DELETE", SIGN_IN)
    of_alice = (await platform.http.get(SERVER)).json()["signed_in"]["user"]
    kept = await platform.called(user="carol")
    own = await asked(platform, "carol", "DELETE", SIGN_IN)
    after, _ = await platform.send(user="carol")
    of_others = await platform.called(user="alice")

    assert (stolen.status_code, [one.status_code for one in finished]) == (202, [409, 404])
    assert by_admin.status_code == 409
    # Only what dan began, and had not finished, is removed.
    assert [one.status_code for one in (*removed, removed_again)] == [404, 204, 404]
    assert (await accounts(platform, "bob"), of_alice) == ([], "alice")
    assert (kept.is_error, own.status_code, of_others.is_error) == (False, 204, False)
    assert after is not None and after.sign_in
    assert platform.remote.callers == ["carol", "ada"]


async def test_a_users_token_is_renewed_once_without_effect_on_others(platform: Platform) -> None:
    await signs_in(platform, "carol")
    await expired(platform, "carol")
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(platform.called(user="carol")) for _ in range(2)]
    other = await platform.called(user="alice")

    assert [call.result().is_error for call in calls] + [other.is_error] == [False] * 3
    assert platform.remote.authorizations.renewals == 1
    assert platform.remote.callers == ["carol", "carol", "ada"]


async def test_after_a_revocation_at_the_vendor_only_that_user_signs_in_again(platform: Platform) -> None:
    await signs_in(platform, "carol")
    first = await platform.called(user="carol")
    platform.remote.authorizations.revoke("carol")
    rejected = await platform.called(user="carol")
    await expired(platform, "carol")
    refused, _ = await platform.send(user="carol")
    (listed,) = await accounts(platform, "carol")
    other = await platform.called(user="alice")
    await signs_in(platform, "carol")
    again = await platform.called(user="carol")

    assert rejected.content["sign_in"] is True
    assert "must sign in to it again" in str(rejected.content["error"])
    assert refused is not None and (refused.answer, refused.sign_in) == ("refused", True)
    assert (listed["needs_sign_in"], listed["signed_in"]) == (True, None)
    assert [result.is_error for result in (first, other, again)] == [False] * 3
    assert (await platform.stored()).needs_sign_in is False


async def test_the_page_shows_how_the_sign_in_of_a_user_ended(platform: Platform) -> None:
    body = {"gateway_url": str(platform.http.base_url), "to_page": True}

    async def returned(user: str, **parts: str) -> str:
        begun = await asked(platform, user, "POST", SIGN_IN, **body)
        state = httpx.URL(begun.json()["url"]).params["state"]
        async with httpx.AsyncClient(verify=False, cookies=begun.cookies) as browser:
            callback = f"{platform.http.base_url}/context/mcp-sign-in"
            response = await browser.get(callback, params={"state": parts.pop("state", state), **parts})
        return response.headers["location"]

    denied = await returned("carol", error="access_denied")
    replaced = await asked(platform, "carol", "POST", SIGN_IN, **body)
    await asked(platform, "carol", "POST", SIGN_IN)
    ended = await platform.returned(replaced.json()["url"], replaced.cookies)
    problem = (await platform.http.get(SERVER)).json()["problem"]
    done = await signs_in(platform, "carol", **body)

    assert denied == "../#/settings/mcp/issues/failed"
    assert (ended.url.fragment, done.url.fragment) == ("/settings/mcp/issues/ended", "/settings/mcp/issues")
    # The server works: the sign-in of one user is not its problem.
    assert problem is None
    assert (await accounts(platform, "carol"))[0]["needs_sign_in"] is False


async def test_sign_ins_of_users_end_with_their_server_its_address_and_the_setting(
    platform: Platform,
) -> None:
    async def changed(**change: Any) -> None:
        body = {"transport": platform.issues["transport"], "sign_in": "user", **change}
        replaced = await platform.http.put(SERVER, json=body)
        assert replaced.status_code == 200, replaced.text

    async def left() -> bool:
        return await account(platform, "carol") is not None

    await signs_in(platform, "carol")
    await changed(description="Issues of the team")
    kept = await left()
    await changed(sign_in="tenant")
    of_tenant = await left()
    refused = await asked(platform, "carol", "POST", SIGN_IN)
    await changed()
    await signs_in(platform, "carol")
    await changed(transport={"type": "http", "url": "https://10.1.2.3/mcp"})
    moved = await left()
    await changed()
    begun = (await asked(platform, "carol", "POST", SIGN_IN)).json()["url"]
    address = str((await platform.returned(begun, httpx.Cookies())).url)
    await changed(transport={"type": "http", "url": "https://10.1.2.3/mcp"})
    too_late = await asked(platform, "carol", "POST", f"{SIGN_IN}/finish", url=address)
    await changed()
    await signs_in(platform, "carol")
    await platform.http.delete(SERVER)
    deleted = await left()
    program = {"id": "git", "transport": {"type": "stdio", "command": ["git"]}, "sign_in": "user"}
    of_program = await platform.http.post("/context/mcp-servers", json=program)

    assert (kept, of_tenant, moved, deleted) == (True, False, False, False)
    assert (refused.status_code, too_late.status_code) == (409, 409)
    assert "an administrator signs in for all" in refused.json()["error"]["message"]
    assert (of_program.status_code, of_program.json()["error"]["field"]) == (400, "sign_in")


async def test_a_server_that_was_configured_again_gets_no_earlier_token(platform: Platform) -> None:
    """A token of the server before, which a process stored at the last moment, is not used."""
    await signs_in(platform, "carol")
    stored = await account(platform, "carol")
    assert stored is not None
    await platform.http.delete(SERVER)
    created = await platform.http.post("/context/mcp-servers", json={**platform.issues, "sign_in": "user"})
    bucket = Bucket(platform.operator, MCP_ACCOUNTS, McpAccount)
    await bucket.put(account_key(platform.owner.tenant, "issues", "carol"), stored)
    await platform.signed_in()
    await platform.approved()
    reply, _ = await platform.send(user="carol")
    listed = await accounts(platform, "carol")
    await signs_in(platform, "carol")
    again = await platform.called(user="carol")

    assert created.status_code == 201
    assert reply == CallReply(answer="refused", reason=reply and reply.reason, sign_in=True)
    assert (listed[0]["needs_sign_in"], again.is_error) == (True, False)


async def test_users_share_the_client_that_was_registered_or_that_an_administrator_named(
    platform: Platform,
) -> None:
    clients = platform.remote.authorizations.clients
    registered = set(clients)
    await signs_in(platform, "carol")
    after = set(clients)
    (client,) = clients.values()
    # As a provider lists it that does not register clients: an administrator enters its id.
    client.token_endpoint_auth_method, client.client_secret = "none", None
    named = {"client_id": client.client_id}
    begun = await platform.http.post(f"{SERVER}/sign-in", json=named)
    shown = [await platform.returned(begun.json()["url"]), await signs_in(platform, "dan")]

    assert len(registered) == 1 and after == registered == set(clients)
    assert [one.status_code for one in shown] == [200, 200]
    assert not (await platform.called(user="dan")).is_error


async def test_nats_requests_sign_in_as_their_user(platform: Platform) -> None:
    gateway = {"gateway_url": str(platform.http.base_url)}
    listed = await platform.request("mcp_account", "list")
    begun = await platform.request("mcp_account", "sign_in", "issues", body=gateway)
    shown = await platform.returned(begun["url"])
    finished = await platform.request("mcp_account", "finish", "issues", body={"url": str(shown.url)})
    called = await platform.called(user="nats")
    left = await platform.request("mcp_account", "sign_out", "issues")
    again = await platform.request("mcp_account", "sign_out", "issues")

    assert [one["id"] for one in listed["items"]] == ["issues"]
    assert (finished["needs_sign_in"], finished["signed_in"]["user"]) == (False, "nats")
    assert (called.is_error, left, again["code"]) == (False, {"id": "issues"}, "not_found")


async def test_the_sign_ins_of_a_user_end_with_the_last_key_of_the_user(platform: Platform) -> None:
    async def key_of_erin(*rights: str) -> dict[str, Any]:
        body = {"user": "erin", "name": "laptop", "rights": rights}
        return (await platform.http.post("/context/keys", json=body)).raise_for_status().json()

    keys = [await key_of_erin("chat") for _ in range(2)]
    begun = await platform.http.post(SIGN_IN, headers={"authorization": f"Bearer {keys[0]['key']}"})
    await platform.returned(begun.json()["url"], begun.cookies)
    await signs_in(platform, "carol")
    left: list[bool] = []
    for one in keys:
        (await platform.http.delete(f"/context/keys/{one['id']}")).raise_for_status()
        left.append(await account(platform, "erin") is not None)

    assert left == [True, False]
    assert await account(platform, "carol") is not None

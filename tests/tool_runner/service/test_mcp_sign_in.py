"""MCP servers that demand OAuth: a gateway, a runner and the sender of a call, with their own permissions."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY, TOKENS
from tests.support.fixtures import SecuredNats, secured_server
from tests.support.forks import ServiceForks
from tests.tool_runner.service.processes import RunnerProcess
from tests.tool_runner.service.sign_in_platform import SERVER, Platform, platform_on, runner_on

from banksman.bus.jetstream import last_message
from banksman.bus.mcp_access import AccessMissing, McpAccess
from banksman.bus.names import MCP, kv_stream, kv_subject
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.kv import Bucket, Entry
from banksman.cli.main import main
from banksman.contracts.calls import CallReply
from banksman.contracts.ids import new_id
from banksman.contracts.mcp import McpServer
from banksman.contracts.runner_requests import FileReply, RequestToken


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
    """A platform on which the server `issues` was configured, without a sign-in."""
    async with platform_on(secured, runner) as served:
        created = await served.http.post("/context/mcp-servers", json=served.issues)
        assert created.status_code == 201, created.text
        assert "status 401" in created.json()["problem"]
        yield served


async def test_an_administrator_signs_in_and_tools_are_called_with_a_token_that_stays_hidden(
    platform: Platform, runner: RunnerProcess
) -> None:
    http = platform.http
    bob = {"authorization": f"Bearer {TOKENS['bob']}"}
    before = (await http.get(SERVER)).json()
    theirs = [
        await http.request(method, f"{SERVER}{path}", headers=bob)
        for method, path in (("GET", ""), ("POST", "/sign-in"), ("DELETE", "/sign-in"))
    ]
    shown = await platform.signed_in()
    after = await http.get(SERVER)
    await platform.approved()
    result = await platform.called()
    trail = await http.get("/v1/audit")
    stored = await last_message(platform.operator, kv_stream(MCP), kv_subject(MCP, platform.key))

    assert (before["needs_sign_in"], before["signed_in"]) == (True, None)
    assert [response.status_code for response in theirs] == [404] * 3
    assert shown.status_code == 200 and "signed in at the MCP server issues" in shown.text
    described = after.json()
    assert (described["needs_sign_in"], described["signed_in"]["user"]) == (False, "alice")
    assert [tool["tool"] for tool in described["changes"]] == ["echo"]
    issued = platform.remote.authorizations.issued
    assert set(platform.remote.tokens) < issued
    assert "«hidden»" in str(result.content["result"])
    assert stored is not None
    seen = [shown.text, after.text, result.model_dump_json(), trail.text, stored.data.decode(), runner.log]
    assert [token for token in issued for text in seen if token in text] == []
    assert [entry["action"] for entry in trail.json()["items"]] == [
        "mcp_server.approved",
        "mcp_server.signed_in",
        "mcp_server.created",
    ]
    assert trail.json()["items"][1]["actor"] == "alice"


async def test_an_expired_token_is_renewed_once_for_calls_at_the_same_time(platform: Platform) -> None:
    authorizations = platform.remote.authorizations
    await platform.signed_in()
    await platform.approved()
    await expired(platform)
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(platform.called()) for _ in range(2)]
    renewals = authorizations.renewals
    # A token that expires at once is renewed before each use, and used; also by the workflows service.
    authorizations.expires_in = 0
    await expired(platform)
    short = [await platform.called(platform.workflows) for _ in range(2)]

    assert [result.is_error for result in (*(call.result() for call in calls), *short)] == [False] * 4
    assert (renewals, authorizations.renewals) == (1, 3)
    assert [platform.remote.tokens.count(token) for token in dict.fromkeys(platform.remote.tokens)] == [
        2,
        1,
        1,
    ]


async def expired(platform: Platform, in_s: float = -60) -> None:
    """Let the stored token be one that expires in some seconds."""
    bucket = Bucket(platform.operator, MCP, McpServer)
    entry = await bucket.get(platform.key)
    assert entry is not None and entry.value.signed_in is not None
    changed = {"expires_at": datetime.now(UTC) + timedelta(seconds=in_s)}
    other = entry.value.signed_in.model_copy(update=changed)
    await bucket.put(platform.key, entry.value.model_copy(update={"signed_in": other}))


async def test_a_refused_renewal_and_a_removed_sign_in_end_the_calls_with_a_reason(
    platform: Platform,
) -> None:
    await platform.signed_in()
    await platform.approved()
    await expired(platform)
    platform.remote.authorizations.refuses = True
    refused, _ = await platform.send()
    described = (await platform.http.get(SERVER)).json()
    await platform.signed_in()
    removed = [await platform.http.delete(f"{SERVER}/sign-in") for _ in range(2)]
    after, _ = await platform.send()

    reason = "The call was not sent: the server 'issues' needs a sign-in by an administrator."
    assert refused == after == CallReply(answer="refused", reason=reason)
    assert (described["needs_sign_in"], described["signed_in"]) == (True, None)
    assert [response.status_code for response in removed] == [204, 404]
    assert (await platform.stored()).signed_in is None
    assert platform.remote.tokens == []


async def test_a_token_that_cannot_be_renewed_is_used_until_it_expires(platform: Platform) -> None:
    await platform.signed_in()
    await platform.approved()
    await expired(platform, in_s=50)
    platform.remote.authorizations.refuses = True
    assert not (await platform.called()).is_error
    assert platform.remote.authorizations.renewals == 1
    assert (await platform.stored()).needs_sign_in is False


async def test_an_oauth_state_is_accepted_once_in_time_and_from_its_own_issuer_only(
    platform: Platform,
) -> None:
    url = (await platform.http.post(f"{SERVER}/sign-in")).json()["url"]
    later = (await platform.http.post(f"{SERVER}/sign-in")).json()["url"]
    first = httpx.URL(url).params["state"]
    state = httpx.URL(later).params["state"]
    tenant, server, proof = state.split(".")

    async def refused(state: str, **more: Any) -> tuple[int, str]:
        params = {"state": state, "code": "a-code", **more}
        response = await platform.http.get("/context/mcp-sign-in", params=params)
        return response.status_code, response.json()["error"]["message"]

    foreign = (first, f"{new_id('t')}.{server}.{proof}", f"{tenant}.{server}.x", "x", "..", "*.>.x", "ä.b.c")
    outcomes = [await refused(one) for one in foreign]
    done = await platform.returned(later)
    again = await refused(state)
    expired_url = (await platform.http.post(f"{SERVER}/sign-in")).json()["url"]
    stored = await platform.stored()
    assert stored.pending is not None
    past = stored.pending.model_copy(update={"expires_at": datetime.now(UTC) - timedelta(seconds=1)})
    await Bucket(platform.operator, MCP, McpServer).put(
        platform.key, stored.model_copy(update={"pending": past})
    )
    expired_state = await platform.returned(expired_url)
    mixed_up = (await platform.http.post(f"{SERVER}/sign-in")).json()["url"]
    other_issuer = await refused(httpx.URL(mixed_up).params["state"], iss="https://elsewhere.example")
    denied_url = (await platform.http.post(f"{SERVER}/sign-in")).json()["url"]
    denied = await refused(httpx.URL(denied_url).params["state"], error="access_denied")

    ended = "this sign-in has ended or was not begun here: begin it again"
    assert outcomes == [(409, ended)] * len(foreign)
    assert done.status_code == 200
    assert again == (409, ended)
    assert (expired_state.status_code, expired_state.json()["error"]["message"]) == (409, ended)
    assert other_issuer == (409, "the code comes from another authorization server")
    assert denied == (409, "the authorization server refused the sign-in at server 'issues'")


async def test_a_browser_below_a_proxy_returns_to_the_page_with_a_reason_and_without_its_cookie(
    platform: Platform,
) -> None:
    """The browser sees the page below a path, and the gateway does not."""
    body = {"gateway_url": "https://proxy.test/banksman/", "to_page": True}
    begun = [await platform.http.post(f"{SERVER}/sign-in", json=body) for _ in range(2)]

    async def returned(begun: httpx.Response) -> tuple[str, SimpleCookie]:
        state = httpx.URL(begun.json()["url"]).params["state"]
        (name, morsel), *_ = SimpleCookie(begun.headers["set-cookie"]).items()
        response = await platform.http.get(
            "/context/mcp-sign-in",
            params={"state": state, "error": "access_denied"},
            headers={"cookie": f"{name}={morsel.value}"},
        )
        assert response.status_code == 303, response.text
        return response.headers["location"], SimpleCookie(response.headers["set-cookie"])

    replaced, cookie = await returned(begun[0])
    denied, _ = await returned(begun[1])

    assert (replaced, denied) == ("../#/mcp/issues/ended", "../#/mcp/issues")
    (removed,) = cookie.values()
    assert (removed["path"], removed["max-age"]) == ("/banksman/context/mcp-sign-in", "0")
    assert (await platform.stored()).problem_code == "sign_in"


async def test_only_the_user_who_began_a_sign_in_can_finish_it(platform: Platform) -> None:
    """A link that another person opens must not attach their account to the tenant."""
    http = platform.http

    async def finished(user: str, url: str, server: str = SERVER) -> tuple[int, dict[str, Any]]:
        headers = {"authorization": f"Bearer {TOKENS[user]}"}
        response = await http.post(f"{server}/sign-in/finish", json={"url": url}, headers=headers)
        return response.status_code, response.json()

    begun = await http.post(f"{SERVER}/sign-in")
    cookie = begun.headers["set-cookie"]
    below = {"gateway_url": "https://proxy.test/banksman/"}
    cookie_below = (await http.post(f"{SERVER}/sign-in", json=below)).headers["set-cookie"]
    begun = await http.post(f"{SERVER}/sign-in")
    elsewhere = await platform.returned(begun.json()["url"], httpx.Cookies())
    before = await platform.stored()
    by_cookie = await platform.returned(begun.json()["url"])
    await http.delete(f"{SERVER}/sign-in")
    again = (await http.post(f"{SERVER}/sign-in")).json()["url"]
    address = str((await platform.returned(again, httpx.Cookies())).url)
    others = [await finished("reader", address), await finished("bob", address)]
    nowhere = await finished("alice", "http://127.0.0.1/context/mcp-sign-in?code=a-code")
    by_key = await finished("alice", address)
    used = await finished("alice", address)
    trail = (await http.get("/v1/audit")).json()["items"]

    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Path=/context/mcp-sign-in;" in cookie
    assert "Path=/banksman/context/mcp-sign-in;" in cookie_below and "Secure" in cookie_below
    assert (elsewhere.status_code, before.signed_in) == (202, None)
    assert "this sign-in was not begun in this browser" in elsewhere.text
    assert (by_cookie.status_code, "set-cookie" in by_cookie.headers) == (200, True)
    assert [status for status, _ in others] == [409, 404]
    assert (nowhere[0], nowhere[1]["error"]["code"]) == (400, "bad_request")
    assert (by_key[0], by_key[1]["signed_in"]["user"], by_key[1]["needs_sign_in"]) == (200, "alice", False)
    assert used[0] == 409
    done = ["mcp_server.signed_in", "mcp_server.signed_out", "mcp_server.signed_in", "mcp_server.created"]
    assert [(one["action"], one["actor"]) for one in trail] == [(action, "alice") for action in done]


async def test_nats_requests_connect_servers_and_sign_in_to_them(platform: Platform) -> None:
    """Interfaces, section 6: NATS offers the same as HTTP."""
    transport = {"type": "http", "url": platform.remote.url}
    named = ("tracker",)
    created = await platform.request("mcp", "create", body={"id": "tracker", "transport": transport})
    gateway = {"gateway_url": str(platform.http.base_url)}
    begun = await platform.request("mcp", "sign_in", *named, body=gateway)
    nowhere = await platform.request("mcp", "sign_in", *named)
    shown = await platform.returned(begun["url"])
    of_http = await platform.http.post(
        "/context/mcp-servers/tracker/sign-in/finish", json={"url": str(shown.url)}
    )
    finished = await platform.request("mcp", "finish", *named, body={"url": str(shown.url)})
    approved = await platform.request("mcp", "approve", *named, body={"digest": finished["changes_digest"]})
    looked = await platform.request("mcp", "look", *named)
    listed = await platform.request("mcp", "list")
    left = await platform.request("mcp", "sign_out", *named)
    read = await platform.request("mcp", "read", *named)
    elsewhere = {"transport": {"type": "stdio", "command": ["/usr/bin/nothing"]}}
    replaced = await platform.request("mcp", "update", *named, body=elsewhere)
    program = await platform.request("mcp", "sign_in", *named, body=gateway)
    deleted = await platform.request("mcp", "delete", *named)

    assert (created["needs_sign_in"], "status 401" in created["problem"]) == (True, True)
    assert nowhere["message"] == "gateway_url is required"
    assert (shown.status_code, of_http.status_code) == (202, 409)
    assert (finished["signed_in"]["user"], finished["needs_sign_in"]) == ("nats", False)
    assert [tool["name"] for tool in approved["tools"]] == ["tracker__echo"]
    assert (looked["tools"], looked["changes"]) == (approved["tools"], [])
    assert [server["id"] for server in listed["items"]] == ["issues", "tracker"]
    assert left == deleted == {"id": "tracker"}
    assert (read["signed_in"], read["needs_sign_in"]) == (None, True)
    assert (replaced["transport"]["command"], replaced["tools"]) == (["/usr/bin/nothing"], [])
    assert program["code"] == "conflict"
    tokens = json.dumps([begun, finished, approved, looked, listed, read])
    assert [token for token in platform.remote.authorizations.issued if token in tokens] == []


@dataclass
class Shell:
    """Runs commands in this process, with a user who pastes the address at which the browser ended."""

    platform: Platform
    loop: asyncio.AbstractEventLoop
    out: io.StringIO = field(default_factory=io.StringIO)

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        url = next(line for line in self.out.getvalue().splitlines() if line.startswith("http"))
        ended = asyncio.run_coroutine_threadsafe(self.platform.returned(url, httpx.Cookies()), self.loop)
        return f"{ended.result().url}\n"

    def run(self, *arguments: str) -> tuple[int, str]:
        self.out = io.StringIO()
        sys.argv = ["banksman", "mcp", *arguments, "--url", str(self.platform.http.base_url)]
        sys.stdin = self
        with contextlib.redirect_stdout(self.out), contextlib.redirect_stderr(self.out):
            code = main()
        return code, self.out.getvalue()


async def test_commands_connect_servers_and_sign_in_to_them(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argv", "stdin"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setenv("BANKSMAN_TOKEN", TOKENS["alice"])
    shell = Shell(platform, asyncio.get_running_loop())

    async def mcp(*arguments: str) -> tuple[int, str]:
        return await asyncio.to_thread(shell.run, *arguments)

    plain = await mcp("add", "tracker", "--at", platform.remote.url, "--secret", "X-Key=abc")
    added = await mcp("add", "tracker", "--at", platform.remote.url, "--secret", "X-Key=${secret.TRACKER}")
    unset = added[1]
    await platform.http.put("/context/secrets/TRACKER", json={"value": "a-tracker-key"})
    looked = await mcp("look", "tracker")
    pasted = await mcp("sign-in", "tracker")
    left = await mcp("sign-out", "tracker")
    begun = await mcp("sign-in", "tracker", "--json")
    ended = await platform.returned(json.loads(begun[1])["url"], httpx.Cookies())
    finished = await mcp("finish", "tracker", str(ended.url))
    approved = await mcp("approve", "tracker", "--yes")
    shown = await mcp("show", "tracker", "--json")
    listed = await mcp("ls")
    removed = await mcp("rm", "tracker")

    assert plain[0] == 2 and "banksman secrets set" in plain[1] and "abc" not in plain[1]
    assert added[0] == 1 and "TRACKER" in unset
    assert looked[0] == 1 and "needs a sign-in: banksman mcp sign-in tracker" in looked[1]
    for code, text in (pasted, finished):
        assert code == 1 and "  + tracker__echo" in text and "banksman mcp approve tracker" in text
    assert left == (0, "signed out at tracker\n")
    assert approved[0] == 0 and "tools: 1, signed in as alice" in approved[1]
    assert (shown[0], json.loads(shown[1])["transport"]["secrets"]) == (0, ["X-Key"])
    assert [line.split()[0] for line in listed[1].splitlines()] == ["issues", "tracker"]
    assert (listed[0], removed) == (1, (0, "removed tracker\n"))


async def test_a_token_is_used_only_for_the_address_of_its_sign_in(
    platform: Platform,
) -> None:
    """The server is replaced before, after and while a code is exchanged."""

    async def moved(address: str) -> dict[str, Any]:
        body = {"transport": {"type": "http", "url": address}}
        return (await platform.http.put(SERVER, json=body)).json()

    elsewhere = "https://10.1.2.3/mcp"
    url = (await platform.http.post(f"{SERVER}/sign-in")).json()["url"]
    await moved(elsewhere)
    before = await platform.returned(url)
    await moved(platform.remote.url)
    platform.remote.authorizations.before_grant = lambda: moved(elsewhere)
    during = await platform.signed_in()
    left = (await platform.stored()).signed_in
    await moved(platform.remote.url)
    platform.remote.authorizations.before_grant = lambda: asyncio.sleep(0)
    done = await platform.signed_in()
    same = await moved(platform.remote.url)
    stale = await renewing(platform)
    after = await moved(elsewhere)
    access = McpAccess(platform.operator, SecretBox(SIGNING_KEY.encode()), lambda: datetime.now(UTC))
    with pytest.raises(AccessMissing, match="was changed meanwhile"):
        await access.authorized(stale, "alice", stale.value.transport, never_asked)

    assert (before.status_code, during.status_code, done.status_code) == (409, 409, 200)
    assert "was changed meanwhile" in during.text
    assert left is None
    assert (same["signed_in"]["user"], same["needs_sign_in"]) == ("alice", False)
    assert (after["signed_in"], (await platform.stored()).signed_in) == (None, None)


async def renewing(platform: Platform) -> Entry[McpServer]:
    """Return the server as a call reads it while another process renews its expired token."""
    server = await platform.stored()
    assert server.signed_in is not None
    now = datetime.now(UTC)
    claimed = {"expires_at": now, "renewing_until": now + timedelta(hours=1)}
    signed_in = server.signed_in.model_copy(update=claimed)
    return Entry(platform.key, server.model_copy(update={"signed_in": signed_in}), 0)


async def never_asked(request: RequestToken) -> FileReply:
    raise AssertionError(request)

"""Sign-in at hostile and broken servers: their metadata is checked, and bounded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.tool_runner.conftest import TLS, Responder, Server, replying, serving

from banksman.contracts.mcp import OAuthClient
from banksman.contracts.runner_requests import DiscoverSignIn, RequestToken
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.mcp.authorization import Authorizations, GrantRefused, SignInFailed
from banksman.tool_runner.settings import FetchLimits

REDIRECT = "https://banksman.example/context/mcp-sign-in"
CLIENT = OAuthClient(client_id="us", client_secret="a-secret-of-ours", method="client_secret_basic")
JSON = "Content-Type: application/json"
RESOURCE, SERVER = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"


def described(origin: str) -> dict[str, dict[str, Any]]:
    """Return the metadata of a server of this origin, by path."""
    return {
        RESOURCE: {"resource": f"{origin}/mcp", "authorization_servers": [origin]},
        SERVER: {
            "issuer": origin,
            "authorization_endpoint": f"{origin}/authorize",
            "token_endpoint": f"{origin}/token",
            "registration_endpoint": f"{origin}/register",
            "code_challenge_methods_supported": ["S256"],
        },
        "/register": {"client_id": "registered", "token_endpoint_auth_method": "none"},
    }


def stating(changes: dict[str, dict[str, Any] | bytes]) -> tuple[Responder, list[Server]]:
    """Return a responder with the metadata of a correct server, with some changes by path."""
    running: list[Server] = []

    async def respond(writer: asyncio.StreamWriter, path: str) -> None:
        documents = described(running[0].url("", host="127.0.0.1"))
        if path not in documents:
            return await replying(b"", status="401 Denied")(writer, path)
        change = changes.get(path, {})
        body = change if isinstance(change, bytes) else json.dumps(documents[path] | change).encode()
        await replying(body, JSON)(writer, path)

    return respond, running


def reaching(server: Server, *, allowed: bool = True) -> Authorizations:
    private = (f"127.0.0.1:{server.port}",) if allowed else ()
    limits = FetchLimits(timeout_s=5)
    return Authorizations(Egress(limits, hosts=HostRules(), private=private, ssl_context=TLS))


async def discovered(changes: dict[str, dict[str, Any] | bytes], client: OAuthClient | None = None) -> Any:
    respond, running = stating(changes)
    async with serving(respond) as server:
        running.append(server)
        url = server.url("/mcp", host="127.0.0.1")
        wanted = DiscoverSignIn(url=url, redirect_uri=REDIRECT, client=client)
        return await reaching(server).discover(wanted)


async def test_a_client_is_registered_unless_one_of_this_authorization_server_is_known() -> None:
    registered = await discovered({})
    named = await discovered({"/register": b"no"}, CLIENT)
    foreign = CLIENT.model_copy(update={"issuer": "https://elsewhere.example"})
    again = await discovered({}, foreign)
    moved = await discovered({}, registered.client.model_copy(update={"redirect_uri": "https://x.example/"}))
    assert registered.client.client_id == again.client.client_id == moved.client.client_id == "registered"
    assert registered.client.issuer == registered.issuer
    assert named.client == CLIENT


ELSEWHERE = "https://elsewhere.example"
REFUSALS: list[tuple[dict[str, dict[str, Any] | bytes], str]] = [
    ({RESOURCE: {"resource": f"{ELSEWHERE}/mcp"}}, "another resource"),
    ({SERVER: {"issuer": ELSEWHERE}}, "another issuer"),
    ({SERVER: {"code_challenge_methods_supported": ["plain"]}}, "PKCE"),
    ({SERVER: {"code_challenge_methods_supported": None}}, "PKCE"),
    ({SERVER: {"token_endpoint": "http://site.example/token"}}, "site.example: a sign-in needs https"),
    ({SERVER: {"authorization_endpoint": "http://site.example/"}}, "site.example: a sign-in needs https"),
    ({RESOURCE: {"authorization_servers": ["https://10.1.2.3/"]}}, "not a public address"),
    ({RESOURCE: {"authorization_servers": ["https://169.254.169.254/"]}}, "not a public address"),
    ({SERVER: {"registration_endpoint": None}}, "configure a client id"),
    ({SERVER: {"registration_endpoint": "https://127.0.0.1/register"}}, "not a public address"),
    ({RESOURCE: b" " * 70_000}, "more than 65536 bytes"),
    ({SERVER: b"[" * 60_000}, "no authorization server"),
    ({SERVER: b"{}"}, "no authorization server"),
    ({"/register": b'{"client_id": ""}'}, "did not register"),
    ({"/register": {"token_endpoint_auth_method": "private_key_jwt"}}, "did not register"),
    ({"/register": {"client_id": "x" * 10_000}}, "invalid values"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSALS, ids=[reason for _, reason in REFUSALS])
async def test_the_metadata_of_a_server_is_checked(
    changes: dict[str, dict[str, Any] | bytes], reason: str
) -> None:
    with pytest.raises(SignInFailed) as caught:
        await discovered(changes)
    assert reason in str(caught.value)


TOKENS = [
    (replying(b'{"error": "invalid_grant"}', JSON, status="400 Bad"), "invalid_grant", True),
    (replying(b'{"error": "the-refresh-token"}', JSON, status="401 Bad"), "status 401", True),
    (replying(b"{}", JSON, status="429 Many"), "status 429", False),
    (replying(b"{}", JSON, status="503 Busy"), "status 503", False),
    (replying(b"", "Location: http://169.254.169.254/", status="307 Moved"), "status 307", False),
    (replying(b'{"access_token": "the-refresh-token\\n"}', JSON), "unusable token", False),
    (replying(b'{"access_token": 1}', JSON), "unusable token", False),
]


@pytest.mark.parametrize(("respond", "reason", "is_refused"), TOKENS, ids=[reason for _, reason, _ in TOKENS])
async def test_a_token_endpoint_that_refuses_and_one_that_fails_are_different(
    respond: Responder, reason: str, is_refused: bool
) -> None:
    async with serving(respond) as server:
        url = server.url("/token", host="127.0.0.1")
        form = {"grant_type": "refresh_token", "refresh_token": "the-refresh-token"}
        wanted = RequestToken(token_endpoint=url, client=CLIENT, form=form)
        with pytest.raises(SignInFailed) as caught:
            await reaching(server).token(wanted)
        with pytest.raises(SignInFailed, match="needs https"):
            await reaching(server, allowed=False).token(wanted)
    assert reason in str(caught.value) and "the-refresh-token" not in str(caught.value)
    assert isinstance(caught.value, GrantRefused) == is_refused
    assert len(server.requests) == 1

"""Outgoing connections through a company's proxy, to servers that its own authority certifies."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import BadInput, ProviderFailed
from banksman.contracts.messages import UserMessage
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.gateway.interfaces.passthrough.upstreams import ForwardedRequest, Upstreams
from banksman.gateway.oidc.provider import OidcProvider
from banksman.gateway.pinned_http import PinnedHttp, RequestErrors
from banksman.gateway.settings import OidcSettings, Upstream
from banksman.runtime.addresses import is_public
from banksman.runtime.background import Background
from banksman.runtime.outgoing import proxy_for
from banksman.runtime.settings import ServiceSettings, load
from banksman.tool_runner.egress.client import ANY_HOST, Egress, FetchFailed
from banksman.tool_runner.mcp.connection import ConnectionState
from banksman.tool_runner.mcp.transports import CheckedTransport, ReceiptMeter
from banksman.tool_runner.settings import FetchLimits
from tests.support.deltas import Shown
from tests.support.tunnels import ADDRESS, HOST, Tunnels, company_network, untrusting

REQUEST = ModelRequest("m", "", (UserMessage(message_id="m1", content="go"),), ())
# The library of an adapter passes the login of a proxy in a way that aiohttp will remove.
pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in:DeprecationWarning")
LOGIN = f"Basic {base64.b64encode(b'user:pass word').decode()}"


@pytest.fixture
async def tunnels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncGenerator[Tunnels]:
    async with company_network(monkeypatch, tmp_path) as opened:
        yield opened


async def resolved(host: str, port: int) -> list[str]:
    return [ADDRESS]


async def complete(vendor: str) -> str | None:
    base = f"https://{HOST}"
    fields = {"openai_base_url": f"{base}/v1", "anthropic_base_url": base, "max_attempts": 1, "max_wait_s": 0}
    providers = Providers(ProviderSettings.model_validate(fields))
    try:
        provider, _ = providers.choose(f"{vendor}:m")
        return (await provider.complete(REQUEST, deltas=Shown(), deadline_s=30)).text
    finally:
        await providers.close()


async def complete_with_library(api: str) -> str | None:
    pytest.importorskip("pydantic_ai")
    entry = {"api": api, "base_url": f"https://{HOST}", "api_key": "k"}
    settings = ProviderSettings.model_validate(
        {"providers": {"other": entry}, "max_wait_s": 0, "max_attempts": 1}
    )
    providers = Providers(settings)
    try:
        provider, _ = providers.choose("other:m")
        return (await provider.complete(REQUEST, deltas=Shown(), deadline_s=60)).text
    finally:
        await providers.close()


async def forward() -> str | None:
    upstream = Upstream(name="u", base_url=f"https://{HOST}/v1")
    async with Upstreams((upstream,), Background(), timeout_s=30) as upstreams:
        request = ForwardedRequest("/chat/completions", "", b"{}", {}, "openai")
        response = await upstreams.open((upstream,), request)
        return b"".join([piece async for piece in response.body]).decode()


async def send_webhook() -> str | None:
    url = parse_url(f"https://{ADDRESS}/hook")
    async with PinnedHttp().request("POST", url, {}, b"{}", allowed=is_public) as response:
        return (await response.aread()).decode()


async def sign_in() -> str | None:
    provider = OidcProvider(OidcSettings(issuer=f"https://{ADDRESS}", audience="a"))
    return str((await provider.endpoints()).token)


async def fetch() -> str | None:
    egress = Egress(FetchLimits(), resolver=resolved)
    return (await egress.get(f"https://{HOST}/page")).body.decode()


async def request_mcp_server() -> str | None:
    egress = Egress(FetchLimits(), resolver=resolved)
    transport = CheckedTransport(egress, ANY_HOST, ReceiptMeter(), ConnectionState())
    async with httpx2.AsyncClient(transport=transport) as client:
        return (await client.post(f"https://{HOST}/mcp", json={})).text


BY_NAME: dict[str, Callable[[], Awaitable[str | None]]] = {
    "openai": lambda: complete("openai"),
    "anthropic": lambda: complete("anthropic"),
    "google": lambda: complete_with_library("google"),
    "bedrock": lambda: complete_with_library("bedrock"),
    "passthrough": forward,
}
BY_ADDRESS: dict[str, Callable[[], Awaitable[str | None]]] = {
    "webhook": send_webhook,
    "oidc": sign_in,
    "web_fetch": fetch,
    "mcp": request_mcp_server,
}
"""Requests to hosts that others than the operator may name: the proxy gets the checked address."""
ALL = BY_NAME | BY_ADDRESS


@pytest.mark.parametrize("kind", ALL)
async def test_each_request_uses_the_proxy_and_trusts_the_private_authority(
    tunnels: Tunnels, kind: str
) -> None:
    if kind == "bedrock":
        # The refusal of the server shows that the request arrived.
        with pytest.raises(ProviderFailed, match="The input is malformed"):
            await ALL[kind]()
    else:
        assert await ALL[kind]()

    assert set(tunnels.opened) == {f"{HOST if kind in BY_NAME else ADDRESS}:443"}
    assert tunnels.logins == {LOGIN}


@pytest.mark.parametrize("kind", ALL)
async def test_no_request_trusts_an_unknown_authority(
    tunnels: Tunnels, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrusting(monkeypatch)

    with pytest.raises(Exception, match=r"(?i)certificate|cannot be (used|reached)"):
        await ALL[kind]()

    assert tunnels.opened


def test_no_proxy_excludes_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.company.example:3128")
    monkeypatch.setenv("no_proxy", ".company.example,vendor.example:8443")

    assert proxy_for("https://model.company.example/v1") is None
    assert proxy_for("https://vendor.example:8443/v1") is None
    assert proxy_for("https://vendor.example/v1") is not None
    assert proxy_for("https://company.example.org/") is not None


@pytest.mark.parametrize(
    "near", ["http://localhost:11434", "https://127.0.0.1:8000", "http://[::1]/v1", "https://10.1.2.3"]
)
def test_local_and_private_addresses_need_no_entry_in_no_proxy(
    monkeypatch: pytest.MonkeyPatch, near: str
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://proxy.company.example:3128")

    assert proxy_for(near) is None
    assert proxy_for("http://vendor.example/v1") == "http://proxy.company.example:3128"


async def test_private_addresses_are_refused_and_not_left_to_the_proxy(tunnels: Tunnels) -> None:
    """A name is looked up and checked here: the proxy may reach servers that the public must not."""

    async def private(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    with pytest.raises(UrlRefused, match=r"10\.0\.0\.1"):
        await Egress(FetchLimits(), resolver=private).get(f"https://{HOST}/")

    assert tunnels.opened == []


async def test_refusal_of_the_proxy_is_the_reason_of_the_failure(tunnels: Tunnels) -> None:
    tunnels.refuses = True

    with pytest.raises(FetchFailed, match=r"the proxy opened no tunnel .*403 Forbidden"):
        await fetch()
    with pytest.raises(RequestErrors, match="403 Forbidden"):
        await send_webhook()
    with pytest.raises(ProviderFailed, match="403"):
        await complete("openai")


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_unusable_bundle_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)

    with pytest.raises(BadInput, match=r"BANKSMAN_CA_BUNDLE.*must be a file of certificates"):
        load(ServiceSettings, ca_bundle=bundle)


async def test_usual_authorities_stay_trusted(tunnels: Tunnels) -> None:
    subjects = str(ssl.create_default_context().get_ca_certs())

    assert "Our authority" in subjects
    assert "ISRG Root X1" in subjects
    assert os.environ["REQUESTS_CA_BUNDLE"] == os.environ["SSL_CERT_FILE"]

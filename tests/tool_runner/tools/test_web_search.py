"""web_search against stand-ins of its providers, as a runner calls them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.support.search_providers import KEY, SearchProviders
from tests.support.web_server import web_server
from tests.tool_runner.conftest import TLS, Runner, only, replying, serving

from banksman.contracts.calls import SearchTarget
from banksman.contracts.tools import NetworkPolicy, SearchApi
from banksman.contracts.workspace_tools import WEB_SEARCH
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import FetchLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome

pytestmark = only("bwrap", "a search uses no sandbox")

PATHS: dict[SearchApi, str] = {"searxng": "search", "brave": "res/v1/web/search", "tavily": "tavily/search"}
EVERY = pytest.mark.parametrize("provider", list(PATHS))


@pytest.fixture
def providers() -> SearchProviders:
    return SearchProviders()


@pytest.fixture
async def address(providers: SearchProviders) -> AsyncIterator[str]:
    async with web_server(providers.app()) as port:
        yield f"127.0.0.1:{port}"


def target(provider: SearchApi, address: str, key: str | None = KEY) -> SearchTarget:
    return SearchTarget(provider=provider, url=f"http://{address}/{PATHS[provider]}", key=key)


async def search(
    runner: Runner,
    wanted: SearchTarget | None,
    private: str = "",
    *,
    query: str = "end of a lease",
    max_results: int = 10,
    network: NetworkPolicy | None = None,
    stop: Stop | None = None,
    limits: FetchLimits | None = None,
    hosts: HostRules | None = None,
) -> ToolOutcome:
    way_out = Egress(
        limits or FetchLimits(timeout_s=5),
        hosts=hosts,
        private=[private] if private else [],
        ssl_context=TLS,
    )
    box = workspace_tools(runner.sandbox, way_out, runner.limits)
    return await box.run(
        "web_search",
        runner.workspace,
        {"query": query, "max_results": max_results},
        search=wanted,
        network=network,
        stop=stop,
    )


@EVERY
async def test_results_have_title_address_snippet_and_day(
    runner: Runner, providers: SearchProviders, address: str, provider: SearchApi
) -> None:
    outcome = await search(runner, target(provider, address), address)

    assert outcome.value == {
        "success": True,
        "provider": provider,
        "results": [
            {
                "title": "Leases",
                "url": "https://docs.example.org/leases",
                "snippet": "How a lease ends",
                "date": "2026-03-01",
            },
            {"title": "Locks & leases", "url": "http://example.com/a?b=1", "snippet": "It isn't a lock"},
        ],
        "truncated": False,
    }
    assert (providers.queries, outcome.is_error) == (["end of a lease"], False)


@EVERY
async def test_no_more_results_than_requested_are_returned(
    runner: Runner, address: str, provider: SearchApi
) -> None:
    outcome = await search(runner, target(provider, address), address, max_results=1)
    assert [one["title"] for one in outcome.value["results"]] == ["Leases"]  # pyright: ignore


@EVERY
async def test_no_match_is_a_success(
    runner: Runner, providers: SearchProviders, address: str, provider: SearchApi
) -> None:
    providers.pages = ()
    outcome = await search(runner, target(provider, address), address)
    assert (outcome.value["success"], outcome.value["results"]) == (True, [])


@pytest.mark.parametrize(
    ("provider", "stated"),
    [
        ("searxng", 'none of its engines responded: [["brave", "too many requests"], ["google", "CAPTCHA"]]'),
        ("brave", "responded with status 429 Request rate limit exceeded for plan."),
        ("tavily", "responded with status 432 This request exceeds your plan's set usage limit."),
    ],
)
async def test_a_failure_of_the_provider_is_stated(
    runner: Runner, providers: SearchProviders, address: str, provider: SearchApi, stated: str
) -> None:
    providers.exhausted = True
    outcome = await search(runner, target(provider, address), address)
    assert (outcome.error_kind, outcome.value["error"]) == ("tool_error", f"{provider}: {stated}")


@pytest.mark.parametrize(
    ("provider", "stated"),
    [
        ("brave", "The provided subscription token «hidden» is invalid."),
        ("tavily", "Unauthorized: missing or invalid API key."),
    ],
)
async def test_a_refused_key_is_not_repeated(
    runner: Runner, address: str, provider: SearchApi, stated: str
) -> None:
    outcome = await search(runner, target(provider, address, "another-secret-key"), address)
    assert str(outcome.value["error"]).endswith(stated)
    assert "another-secret-key" not in json.dumps(outcome.value)


async def test_the_missing_format_of_searxng_is_named(
    runner: Runner, providers: SearchProviders, address: str
) -> None:
    providers.formats = ("html",)
    outcome = await search(runner, target("searxng", address), address)
    assert "status 403 (is json among the formats of its settings?)" in str(outcome.value["error"])


async def test_a_redirect_is_not_followed(runner: Runner, address: str) -> None:
    """A query that begins with `!!` makes SearXNG redirect to another site."""
    outcome = await search(runner, target("searxng", address), address, query="!!g end of a lease")
    assert "redirect" in str(outcome.value["error"])


async def test_a_key_is_sent_over_https_only(runner: Runner, providers: SearchProviders) -> None:
    outcome = await search(runner, target("brave", "search.example"))
    assert (outcome.error_kind, "needs https" in str(outcome.value["error"])) == ("denied", True)


async def test_private_addresses_are_refused(
    runner: Runner, providers: SearchProviders, address: str
) -> None:
    outcome = await search(runner, target("searxng", address, None))
    assert (outcome.error_kind, providers.queries) == ("denied", [])


async def test_the_rules_of_the_assistant_apply_to_the_provider(
    runner: Runner, providers: SearchProviders, address: str
) -> None:
    network = NetworkPolicy(allow_hosts=("docs.example.org",))
    outcome = await search(runner, target("searxng", address), address, network=network)
    assert (outcome.error_kind, providers.queries) == ("denied", [])
    assert "not allowed for this assistant" in str(outcome.value["error"])


async def test_without_a_provider_nothing_is_sent(runner: Runner) -> None:
    outcome = await search(runner, None)
    assert outcome.error_kind == "unavailable"


async def test_texts_of_results_are_bounded_and_other_addresses_left_out(
    runner: Runner, providers: SearchProviders, address: str
) -> None:
    long = {"title": "t" * 5_000, "text": "s " * 5_000, "day": "not a day" * 50}
    bad = ("javascript:alert(1)", "file:///etc/passwd", "http://user@host/", f"https://a/{'x' * 3_000}")
    providers.pages = tuple(
        {**long, "url": url} for url in (*bad, *(f"https://example.org/{n}" for n in range(20)))
    )
    outcome = await search(runner, target("searxng", address), address, max_results=20)

    results = outcome.value["results"]
    assert isinstance(results, list) and 5 < len(results) < 20
    assert (outcome.truncated, outcome.value["truncated"]) == (True, True)
    assert len(json.dumps(results)) <= runner.limits.max_output_chars + 2 * len(results)
    assert all(str(one["url"]).startswith("https://example.org/") for one in results)  # pyright: ignore
    assert {len(str(one["title"])) for one in results} == {300}  # pyright: ignore
    assert all("date" not in one for one in results)  # pyright: ignore


@pytest.mark.parametrize(
    ("body", "stated"),
    [
        (b"<html>gateway timeout</html>", "something else than JSON"),
        (b"[" * 5_000, "something else than JSON"),
        (b'["results"]', "something else than results"),
        (b'{"results": {"url": "x"}}', "something else than results"),
        (b'{"results": "' + b"x" * 600_000 + b'"}', "more than 524288 bytes"),
        (b'{"results": [1, {"url": 1}, {"title": "no address"}]}', ""),
    ],
)
async def test_other_responses_are_failures(runner: Runner, body: bytes, stated: str) -> None:
    async with serving(replying(body, "Content-Type: application/json")) as server:
        private = f"127.0.0.1:{server.port}"
        outcome = await search(runner, target("searxng", private), private)
    assert stated in str(outcome.value.get("error", ""))
    assert outcome.value["success"] is (stated == "")


async def test_a_provider_that_does_not_respond_ends_at_the_time_out(runner: Runner) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        asked.set()
        await release.wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/search", wait)
    async with web_server(app, shutdown_timeout=0) as port:
        private, stop = f"127.0.0.1:{port}", Stop()
        late = await search(runner, target("searxng", private), private, limits=FetchLimits(timeout_s=0.3))
        asked.clear()
        searching = asyncio.create_task(search(runner, target("searxng", private), private, stop=stop))
        async with asyncio.timeout(5):
            await asked.wait()
        stop.request("cancelled")
        cancelled = await searching
        release.set()
    assert (late.error_kind, cancelled.error_kind) == ("timeout", "cancelled")


async def test_a_search_does_not_wait_for_a_command(runner: Runner, address: str) -> None:
    async with runner.turn("bash"), asyncio.timeout(5):
        async with runner.turn(WEB_SEARCH.name):
            outcome = await search(runner, target("searxng", address), address)
    assert outcome.value["success"] is True

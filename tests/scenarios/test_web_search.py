"""Web searches of a tenant with a provider, by its own key."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from banksman import sdk
from banksman.bus.connection import Bus
from banksman.contracts.assistants import NewAssistant, ToolSettings
from banksman.contracts.events import RunFinished
from tests.scenarios.conftest import Play, model_requests, nats_url, operator_seed
from tests.scenarios.test_assistants import TOOLS_ON, created
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.search_providers import KEY, SearchProviders
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import deadline
from tests.support.web_server import web_server

SEARCH = ScriptedReply(tool_calls=(ScriptedCall(name="web_search", arguments={"query": "leases"}),))
FOUND = "https://docs.example.org/leases"


@pytest.fixture
async def searching(system: System) -> AsyncGenerator[sdk.Client]:
    """A service of the tenant whose provider is Brave, with the secret SEARCH_KEY as its key."""
    async with sdk.connect(nats_url(system), "searching", nkey_seed_file=operator_seed(system)) as connected:
        yield connected


@pytest.fixture
async def brave(search_port: int) -> AsyncGenerator[SearchProviders]:
    providers = SearchProviders()
    async with web_server(providers.app(), search_port):
        yield providers


async def set_key(operator: Bus, value: str) -> None:
    await operator.request("api.searching.secret.set.SEARCH_KEY", json.dumps({"value": value}).encode(), 5)


async def conversation_with(client: sdk.Client, model: str) -> str:
    assistant = await client.create_assistant(NewAssistant(model=model, tools=ToolSettings(enabled=True)))
    return await client.create_conversation(assistant=assistant.id)


async def test_results_reach_the_model_and_their_hosts_are_not_named_by_the_user(
    system: System,
    searching: sdk.Client,
    operator: Bus,
    brave: SearchProviders,
    play: Play,
    model: ScriptedModel,
) -> None:
    """The key is in no event, model request and log; a host of a result needs approval as any other."""
    await set_key(operator, KEY)
    fetch = ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": FOUND}),))
    name = play(SEARCH, fetch, ScriptedReply(text="done"))
    conversation = await conversation_with(searching, name)
    run = await searching.send(conversation, "How do leases end?")

    events: list[Any] = []
    async with (
        deadline("the run did not continue"),
        aclosing(searching.follow(conversation, detail="full")) as followed,
    ):
        async for event in followed:
            events.append(event.model_dump(mode="json"))
            if event.type == "approval.requested":
                break
    await searching.cancel(run)

    result = next(one["data"]["content"] for one in events if one["type"] == "tool_call.completed")
    assert (brave.queries, result["provider"]) == (["leases"], "brave")
    assert [(one["title"], one["url"], one.get("date")) for one in result["results"]] == [
        ("Leases", FOUND, "2026-03-01"),
        ("Locks & leases", "http://example.com/a?b=1", None),
    ]
    assert events[-1]["data"]["items"][0]["arguments"] == {"url": FOUND}
    requests = model_requests(model, name)
    assert "How a lease ends" in json.dumps(requests[1]["messages"][-1])
    logs = "".join(file.read_text() for file in system.data_dir.glob("logs/*.log"))
    assert not any(KEY in text for text in (json.dumps(events), json.dumps(requests), logs))


async def test_a_missing_key_is_named_and_nothing_is_sent(
    searching: sdk.Client, operator: Bus, brave: SearchProviders, play: Play
) -> None:
    await operator.request("api.searching.secret.delete.SEARCH_KEY", b"{}", 5)
    conversation = await conversation_with(searching, play(SEARCH, ScriptedReply(text="done")))
    async with deadline("the run did not continue"):
        outcome: RunFinished = await searching.outcome(await searching.send(conversation, "Leases?"))

    result = outcome.tool_calls[0].result
    assert "the secret 'SEARCH_KEY' is not set" in json.dumps(result)
    assert brave.queries == []


async def test_the_tool_is_listed_and_offered_only_to_a_tenant_with_a_provider(
    searching: sdk.Client, client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    name = play(ScriptedReply(text="one"), ScriptedReply(text="two"))
    async with deadline("the run did not end"):
        conversation = await conversation_with(searching, name)
        await searching.outcome(await searching.send(conversation, "hello"))
    await client.run(await client.create(assistant=await created(http, model=name, tools=TOOLS_ON)), "hello")

    offered = [
        "web_search" in {tool["function"]["name"] for tool in body["tools"]}
        for body in model_requests(model, name)
    ]
    listed = {tool.name for tool in await searching.tools()}
    elsewhere = {tool["name"] for tool in (await http.get("/context/tools")).json()["items"]}
    assert offered == [True, False]
    assert ("web_search" in listed, "web_search" in elsewhere) == (True, False)


async def test_a_tenant_searches_with_the_provider_that_its_administrator_chose(
    http: httpx.AsyncClient, client: Client, brave: SearchProviders, search_port: int, play: Play
) -> None:
    """From the next run on; the log of the run names the secret and contains no key."""
    provider = "/context/search-provider"
    body = {"provider": "brave", "url": f"http://127.0.0.1:{search_port}/res/v1/web/search", "api_key": KEY}
    assert (await http.put(provider, json=body)).status_code == 200
    try:
        model = play(SEARCH, ScriptedReply(text="done"))
        conversation = await client.create(assistant=await created(http, model=model, tools=TOOLS_ON))
        outcome = await client.run(conversation, "How do leases end?")
        events = await http.get(f"/context/conversations/{conversation}/events")
    finally:
        await http.delete(provider)
    result = outcome["tool_calls"][0]["result"]
    assert (brave.queries, result["provider"]) == (["leases"], "brave")
    assert KEY not in events.text

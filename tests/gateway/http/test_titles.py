"""Titles that a model writes after the first exchange."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Agent, GatewayFactory
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.work import StartRun
from banksman.gateway.conversations.changes import title_in


async def _exchange(http: httpx.AsyncClient, agent: Agent, **more: Any) -> str:
    created = (await http.post("/v1/chat", json={"content": "How heavy is it?", **more})).json()
    start = await agent.started(created["conversation_id"])
    await agent.begin(start)
    await agent.finish(start, "It lifts 40 t.")
    return start.conversation_id


async def _requested(http: httpx.AsyncClient, agent: Agent) -> StartRun:
    """Wait for the request of a title; its conversation is listed among the archived ones only."""

    async def found() -> dict[str, Any] | None:
        page = (await http.get("/context/conversations", params={"archived": True})).json()
        return next((one for one in page["items"] if one["status"] == "idle"), None)

    hidden = await eventually(found, WAIT_TIMEOUT_S)
    return await eventually(lambda: agent.started(hidden["conversation_id"]), WAIT_TIMEOUT_S)


async def test_a_model_writes_the_title_after_the_first_exchange(
    start_gateway: GatewayFactory, agent: Agent, bus: Bus
) -> None:
    """The title is a run with its own tokens; two tabs that request it start one run."""
    async with start_gateway(title_model="openai:cheap") as gateway, gateway.http as http:
        conversation = await _exchange(http, agent)
        where = f"/context/conversations/{conversation}"
        before = (await http.get(where)).json()
        async with asyncio.TaskGroup() as tabs:
            first = tabs.create_task(http.post(f"{where}/title"))
            start = await _requested(http, agent)
            second = await http.post(f"{where}/title")
            await agent.begin(start)
            await agent.finish(start, '"The load of the crane."\nMore.')
        listed = (await http.get("/context/conversations")).json()["items"]
        archived = (await http.get("/context/conversations", params={"archived": True})).json()["items"]
        again = await http.post(f"{where}/title")
    assert (before["title"], before["title_by"]) == ("How heavy is it?", "message")
    assert start.content == "User:\nHow heavy is it?\n\nAssistant:\nIt lifts 40 t."
    assert (start.settings.model, start.settings.tools.enabled) == ("openai:cheap", False)
    assert second.json()["title_by"] == "message"
    assert first.result().json()["title"] == again.json()["title"] == "The load of the crane"
    assert [one["title"] for one in listed] == ["The load of the crane"]
    assert archived == []
    signal = await last_message(bus, RUNS, subjects.run_signal(agent.tenant, conversation))
    assert signal is not None and b'"title":"The load of the crane"' in signal.data


async def test_a_title_given_by_a_user_stays(start_gateway: GatewayFactory, agent: Agent) -> None:
    """Also a title that is given while the model writes."""
    async with start_gateway(title_model="openai:cheap") as gateway, gateway.http as http:
        named = await _exchange(http, agent, title="Cranes")
        assert (await http.post(f"/context/conversations/{named}/title")).json()["title"] == "Cranes"

        where = f"/context/conversations/{await _exchange(http, agent)}"
        async with asyncio.TaskGroup() as tabs:
            generated = tabs.create_task(http.post(f"{where}/title"))
            start = await _requested(http, agent)
            await http.patch(where, json={"title": "Mine"})
            await agent.begin(start)
            await agent.finish(start, "Theirs")
    assert generated.result().json()["title"] == "Mine"


async def test_a_model_that_fails_is_requested_once(start_gateway: GatewayFactory, agent: Agent) -> None:
    async with start_gateway(title_model="openai:cheap") as gateway, gateway.http as http:
        where = f"/context/conversations/{await _exchange(http, agent)}"
        async with asyncio.TaskGroup() as tabs:
            generated = tabs.create_task(http.post(f"{where}/title"))
            start = await _requested(http, agent)
            await agent.begin(start)
            await agent.finish(start, "No credit.", "failed")
        again = await http.post(f"{where}/title")
    kept = generated.result().json()
    assert (kept["title"], kept["title_by"]) == ("How heavy is it?", "model")
    assert again.json()["title"] == "How heavy is it?"


@pytest.mark.parametrize("settings", [{"titles": False, "title_model": "openai:cheap"}, {}])
async def test_no_title_is_generated_if_titles_are_off_or_the_model_is_the_demo_model(
    start_gateway: GatewayFactory, agent: Agent, settings: dict[str, Any]
) -> None:
    async with start_gateway(**settings) as gateway, gateway.http as http:
        where = f"/context/conversations/{await _exchange(http, agent)}"
        assert (await http.post(f"{where}/title")).json()["title_by"] == "message"


def test_a_title_is_one_printable_line() -> None:
    assert title_in("\n  **Loads\x1b[31m of\u202e cranes**. \n") == "Loads[31m of cranes"
    assert title_in("x" * 200) == "x" * 79 + "…"
    assert title_in(" \n") is None

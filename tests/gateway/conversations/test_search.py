"""Search, pins and the archive over HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import TOKENS, Agent, Served
from tests.support.nats import Broker, NatsServer

from banksman.bus.connection import Bus
from banksman.bus.names import EVENTS
from banksman.contracts import subjects
from banksman.gateway.conversations.listing import WINDOW_BYTES, windows
from banksman.gateway.conversations.search import WAITING


async def _exchange(http: httpx.AsyncClient, agent: Agent, text: str, reply: str) -> str:
    created = (await http.post("/v1/chat", json={"content": text, "title": f"About {text}"[:100]})).json()
    start = await agent.started(created["conversation_id"])
    await agent.begin(start)
    await agent.finish(start, reply)
    return start.conversation_id


async def _find(http: httpx.AsyncClient, q: str, **more: Any) -> dict[str, Any]:
    response = await http.get("/context/search", params={"q": q, **more})
    assert response.status_code == 200, response.text
    return response.json()


async def test_messages_are_found_by_their_text_newest_first(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        first = await _exchange(http, agent, 'The "Große" crane', "It lifts 40 t." + " more" * 100)
        second = await _exchange(http, agent, "Another", "The GROSSE one\nis older.")
        found = await _find(http, "große")
        quoted = await _find(http, '"große"')
        reply = await _find(http, "lifts 40")
        page = await _find(http, "große", limit=1)
        rest = await _find(http, "große", limit=1, cursor=page["next"])
        nothing = await _find(http, "no such text")
        short = await http.get("/context/search", params={"q": "x"})
    assert [(one["conversation_id"], one["role"]) for one in found["items"]] == [
        (second, "assistant"),
        (first, "user"),
    ]
    assert found["items"][0]["snippet"] == "The GROSSE one is older."
    assert found["items"][1]["title"] == 'About The "Große" crane'
    assert [one["conversation_id"] for one in quoted["items"]] == [first]
    assert reply["items"][0]["snippet"].startswith("It lifts 40 t. more") and found["next"] is None
    assert len(reply["items"][0]["snippet"]) < 210
    assert [one["conversation_id"] for one in (*page["items"], *rest["items"])] == [second, first]
    assert (nothing["items"], nothing["next"], short.status_code) == ([], None, 400)


async def test_logs_are_read_in_windows_of_bounded_bytes(gateway: Served, agent: Agent, bus: Bus) -> None:
    """R27: neither the hits nor the messages without hits of a long log are held in memory together."""
    text = "long " * 50_000
    async with gateway.http as http:
        ids = [await _exchange(http, agent, text, text) for _ in range(WINDOW_BYTES // len(text))]
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await _find(http, "LONG", cursor=cursor, limit=10)
            found += [hit["conversation_id"] for hit in page["items"]]
            cursor = page["next"]
        async with asyncio.TaskGroup() as searches:
            missing = {"q": "missing"}
            tasks = [searches.create_task(http.get("/context/search", params=missing)) for _ in range(20)]
    statuses = Counter(task.result().status_code for task in tasks)
    assert found == [one for one in reversed(ids) for _ in range(2)]
    assert set(statuses) == {200, 429} and statuses[200] >= WAITING

    subject = subjects.conversation(agent.tenant, subjects.ANY)
    read = [window async for window in windows(bus, EVENTS, subject, None)]
    sizes = [sum(len(message.data) for message in window.messages) for window in read]
    assert sum(sizes) > WINDOW_BYTES > max(sizes) - len(text) and len(sizes) > 1
    sequences = [message.stream_seq for window in read for message in window.messages]
    assert sequences == sorted(set(sequences), reverse=True)


async def test_another_tenant_finds_nothing(guarded: Served, agent: Agent) -> None:
    async with guarded.http as http:
        await _exchange(http, agent, "secret plan", "Understood.")
        mine = await _find(http, "secret plan")
        other = {"authorization": f"Bearer {TOKENS['bob']}"}
        theirs = (await http.get("/context/search?q=secret plan", headers=other)).json()
    assert (len(mine["items"]), theirs["items"]) == (1, [])


async def test_conversations_are_labelled_and_found_by_a_label(gateway: Served) -> None:
    """Labels are replaced as a whole; one that cannot be stored is named."""

    async def listed(http: httpx.AsyncClient, **query: Any) -> list[str]:
        page = (await http.get("/context/conversations", params=query)).json()
        return [one["title"] for one in page["items"]]

    async with gateway.http as http:
        created = [await http.post("/context/conversations", json={"title": name}) for name in "ab"]
        urls = [f"/context/conversations/{one.json()['conversation_id']}" for one in created]
        await http.patch(urls[0], json={"labels": ["crane", " harbour "]})
        await http.patch(urls[1], json={"labels": ["harbour"]})
        found = [
            await listed(http, label="crane"),
            await listed(http, label="harbour"),
            await listed(http, q="CRAN"),
        ]
        stored = (await http.get(urls[0])).json()["labels"]
        await http.patch(urls[0], json={"labels": []})
        left = await listed(http, label="crane")
        refused = [
            await http.patch(urls[0], json={"labels": labels})
            for labels in (["a,b"], ["x" * 41], [""], ["y"] * 11)
        ]
    assert (found, stored, left) == ([["a"], ["b", "a"], ["a"]], ["crane", "harbour"], [])
    assert [one.status_code for one in refused] == [400] * 4
    assert all("labels" in one.text for one in refused)


@pytest.mark.one_server
async def test_a_page_of_the_list_reads_little_more_than_its_entries(
    gateway: Served, nats_server: Broker
) -> None:
    """The cost of a page depends on its length, not on the number of conversations."""
    assert isinstance(nats_server, NatsServer)
    async with gateway.http as http:
        for number in range(150):
            await http.post("/context/conversations", json={"title": f"n{number}"})
        before = nats_server.varz()["out_msgs"]
        page = (await http.get("/context/conversations", params={"limit": 2})).json()
        sent = nats_server.varz()["out_msgs"] - before
    assert [one["title"] for one in page["items"]] == ["n149", "n148"]
    assert sent < 60


async def test_conversations_are_pinned_and_archived(gateway: Served) -> None:
    async def listed(http: httpx.AsyncClient, **query: Any) -> list[str]:
        page = (await http.get("/context/conversations", params=query)).json()
        return [one["conversation_id"] for one in page["items"]]

    async with gateway.http as http:
        a, b, c = [
            (await http.post("/context/conversations", json={"title": name})).json()["conversation_id"]
            for name in "abc"
        ]
        pinned = await http.patch(f"/context/conversations/{a}", json={"pinned": True})
        await http.patch(f"/context/conversations/{b}", json={"archived": True})
        found = [await listed(http), await listed(http, pinned=True), await listed(http, archived=True)]
        archived = (await http.get(f"/context/conversations/{b}")).json()
        await http.patch(f"/context/conversations/{b}", json={"archived": False, "title": "back"})
        back = await listed(http, q="back")
    assert (pinned.json()["pinned"], pinned.json()["title"]) == (True, "a")
    assert found == [[a, c], [a], [b]]
    assert (archived["archived"], back) == (True, [b])

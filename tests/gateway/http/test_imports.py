"""Import of exported conversations."""

from __future__ import annotations

from typing import Any

import httpx
from tests.gateway.conftest import Agent, Served

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.json_text import MAX_VALUES
from banksman.contracts.work import ImportConversation

PATH = "/context/conversations/import"


async def _exported(http: httpx.AsyncClient, agent: Agent) -> dict[str, Any]:
    """Return a conversation with two versions of its second message and a run that has not ended."""
    created = (await http.post("/context/conversations", json={"title": "Cranes"})).json()
    where = f"/context/conversations/{created['conversation_id']}"
    after, first = dict[str, Any](), ""
    for text in ("One", "Two", "Second"):
        sent = (await http.post(f"{where}/runs", json={"content": text, **after})).json()
        start = await agent.started(sent["conversation_id"])
        await agent.begin(start)
        await agent.finish(start, f"Reply to {text}")
        if text == "One":
            first = f"m-{start.run_id[-12:]}"
        if text == "Two":
            after = {"branch": {"after": first}}
    await http.post(f"{where}/runs", json={"content": "Open"})
    await agent.begin(await agent.started(created["conversation_id"]))
    events = (await http.get(f"{where}/events")).json()["items"]
    return {"conversation": (await http.get(where)).json(), "events": events}


async def _stored(bus: Bus, tenant: str, conversation_id: str) -> ImportConversation:
    signal = await last_message(bus, RUNS, subjects.run_signal(tenant, conversation_id))
    assert signal is not None
    return ImportConversation.model_validate_json(signal.data)


async def test_the_messages_of_an_export_become_a_conversation_with_its_branches(
    gateway: Served, agent: Agent, bus: Bus
) -> None:
    """Under new ids, and once for one request id."""
    async with gateway.http as http:
        export = await _exported(http, agent)
        key = {"idempotency-key": "import-1"}
        first = await http.post(PATH, json=export, headers=key)
        again = await http.post(PATH, json=export, headers=key)
        listed = (await http.get("/context/conversations")).json()["items"]
    assert (first.status_code, again.json()["conversation_id"]) == (201, first.json()["conversation_id"])
    record = first.json()
    assert (record["title"], len(listed)) == ("Cranes", 2)
    one, two, second = (await _stored(bus, agent.tenant, record["conversation_id"])).runs
    assert [run.message.content for run in (one, two, second)] == ["One", "Two", "Second"]
    assert [run.replies[0].content for run in (one, two)] == ["Reply to One", "Reply to Two"]
    assert second.branch is not None and second.branch.after == one.replies[0].message_id
    assert one.run_id.startswith(record["conversation_id"]) and one.status == "completed"


async def test_an_export_may_have_more_values_than_other_bodies(
    gateway: Served, agent: Agent, bus: Bus
) -> None:
    async with gateway.http as http:
        export = await _exported(http, agent)
        other = {"type": "tool_call.output", "run_id": "r1", "data": {"numbers": list(range(20))}}
        long = export | {"events": [*export["events"], *[other] * (MAX_VALUES // 20)]}
        imported = await http.post(PATH, json=long)
    assert imported.status_code == 201, imported.text
    stored = await _stored(bus, agent.tenant, imported.json()["conversation_id"])
    assert len(stored.runs) == 3


async def test_an_invalid_or_oversized_export_is_refused_with_its_place(gateway: Served) -> None:
    def started(**data: Any) -> dict[str, Any]:
        message = {"message_id": "u1", "message": "Hi", "model": "demo:demo", **data}
        return {"type": "run.started", "run_id": "r1", "data": message}

    def ended(status: Any = "completed") -> dict[str, Any]:
        return {"type": "run.finished", "run_id": "r1", "data": {"status": status}}

    long = {"message_id": "a1", "role": "assistant", "content": "x" * 250_000}
    replied = {"type": "message.completed", "run_id": "r1", "data": long}
    cases = {
        "events": [
            {"events": []},
            {"events": [{"type": "x"}]},
            {"events": [started(), *[replied] * 4, ended()]},
        ],
        "events[0].data": [{"events": [started(message=text), ended()]} for text in (7, "x" * 300_000)],
        "events[0].data.message_id": [{"events": [started(message_id=7), ended()]}],
        "events[1].data.status": [{"events": [started(), ended("won")]}],
    }
    async with gateway.http as http:
        for place, bodies in cases.items():
            for body in bodies:
                refused = await http.post(PATH, json=body)
                assert (refused.status_code, place in refused.json()["error"]["message"]) == (400, True), (
                    refused.text
                )
        listed = (await http.get("/context/conversations")).json()["items"]
    assert listed == []

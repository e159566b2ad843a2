"""Branches over HTTP: a message continues the conversation from any earlier one."""

from __future__ import annotations

from typing import Any

import httpx
from tests.gateway.conftest import Agent, Served


async def _turn(http: httpx.AsyncClient, agent: Agent, where: str, text: str, **more: Any) -> str:
    """Send a message, reply to it and return the run's id."""
    sent = await http.post(f"{where}/runs", json={"content": text, **more})
    assert sent.status_code == 202, sent.text
    start = await agent.started(where.rpartition("/")[2])
    await agent.begin(start)
    await agent.finish(start, f"Reply to {text}")
    return start.run_id


def _reply_id(run_id: str) -> str:
    return "m-" + run_id[-12:]


async def test_a_run_continues_from_the_message_that_it_names(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        created = await http.post("/context/conversations", json={})
        where = f"/context/conversations/{created.json()['conversation_id']}"
        first = await _turn(http, agent, where, "One")
        second = await _turn(http, agent, where, "Two")
        edited = await _turn(http, agent, where, "Three", branch={"after": _reply_id(first)})
        fresh = await _turn(http, agent, where, "Four", branch={"after": None})
        back = await _turn(http, agent, where, "Five", branch={"after": _reply_id(second)})
        seen = {
            run: (await http.get(f"/context/runs/{run}/steps/{_reply_id(run)}")).json()["request"]
            for run in (edited, fresh, back)
        }
        events = (await http.get(f"{where}/events")).json()["items"]
    contents = [[one["content"] for one in seen[run]["messages"]] for run in (edited, fresh, back)]
    assert contents == [
        ["One", "Reply to One", "Three"],
        ["Four"],
        ["One", "Reply to One", "Two", "Reply to Two", "Five"],
    ]
    branches = [one["data"].get("branch") for one in events if one["type"] == "run.started"]
    assert branches == [
        None,
        None,
        {"after": _reply_id(first)},
        {"after": None},
        {"after": _reply_id(second)},
    ]


async def test_a_branch_from_an_unknown_message_is_refused(gateway: Served, agent: Agent) -> None:
    async with gateway.http as http:
        created = await http.post("/context/conversations", json={})
        where = f"/context/conversations/{created.json()['conversation_id']}"
        run = await _turn(http, agent, where, "One")
        after = {"content": "x", "branch": {"after": "m-other"}}
        unknown = await http.post(f"{where}/runs", json=after)
        steering = {"content": "x", "branch": {"after": _reply_id(run)}, "mode": "steer"}
        steered = await http.post(f"{where}/runs", json=steering)
        incomplete = await http.post(f"{where}/runs", json={"content": "x", "branch": {}})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert (steered.status_code, incomplete.status_code) == (400, 400)

"""Decided approval requests: who decided which calls, over which interface, and what a deletion leaves."""

from __future__ import annotations

import json
from typing import Any

import httpx

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

LIST = "/context/decisions"


async def listed(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    response = await http.get(LIST, params=query)
    assert response.status_code == 200, response.text
    return response.json()["items"]


async def decided(http: httpx.AsyncClient, conversation: str, count: int) -> list[dict[str, Any]]:
    """Return the decisions of a conversation, newest first, once there are `count`."""

    async def found() -> list[dict[str, Any]] | None:
        items = [one for one in await listed(http) if one["conversation_id"] == conversation]
        return items if len(items) == count else None

    return await eventually(found)


async def test_each_decision_is_listed_with_its_calls_and_in_the_audit_trail(
    client: Client, http: httpx.AsyncClient, operator: Bus, play: Play
) -> None:
    """R34: an edit over the websocket, a rejection that stops over HTTP, and a withdrawn request."""
    play_of = play(bash("echo one", "echo two"), bash("rm -rf harbour"), ScriptedReply(text="unreachable"))
    conversation = await client.create(play_of)
    run_id = await client.chat(conversation, "go")
    request = await client.approval_request(run_id)
    first, second = (item["tool_call_id"] for item in request["items"])
    edited = {"tool_call_id": first, "decision": "approve", "arguments": {"command": "echo edited"}}
    decisions = [edited, {"tool_call_id": second, "decision": "reject", "on_reject": "feedback"}]
    await client.request(
        "approval.reply", approval_id=request["approval_id"], decisions=decisions, remember="run"
    )
    later = await client.wait_for(
        lambda frame: (
            frame["type"] == "approval.requested" and frame["data"]["approval_id"] != request["approval_id"]
        )
    )
    other = later["data"]
    await http.post(f"/context/approvals/{other['approval_id']}", json={"all": "reject"})
    assert (await client.finished(run_id))["status"] == "rejected"

    rejected, mixed = await decided(http, conversation, 2)
    assert [(one["tool"], one["call"], one["decision"]) for one in mixed["calls"]] == [
        ("bash", "echo one", "edited"),
        ("bash", "echo two", "rejected"),
    ]
    assert (mixed["outcome"], mixed["interface"], mixed["remember"]) == ("mixed", "websocket", "run")
    assert [one["covers"]["words"] for one in mixed["calls"]] == [
        "the calls that are like the edited one",
        "every call of bash with exactly this command",
    ]
    assert [(one["call"], one["decision"]) for one in rejected["calls"]] == [("rm -rf harbour", "stopped")]
    assert (rejected["outcome"], rejected["by"], rejected["interface"]) == ("rejected", "local", "http")

    assert await listed(http, text="RM -RF harbour") == [rejected]
    assert await listed(http, text="no such text") == []
    assert rejected in await listed(http, outcome="rejected", tool="bash", by="local")
    assert mixed not in await listed(http, outcome="rejected")
    assert await listed(http, tool="write_file", until=rejected["at"], text="harbour") == []
    page = (await http.get(LIST, params={"limit": 1})).json()
    assert (page["items"], page["next"]) == ([rejected], rejected["id"])
    assert (await http.get(LIST, params={"limit": 1, "after": page["next"]})).json()["items"] == [mixed]
    over_nats = await operator.request(
        subjects.api("local", "decision", "list"), b'{"limit": 1}', WAIT_TIMEOUT_S
    )
    assert json.loads(over_nats) == page

    trail = (await http.get("/v1/audit", params={"action": "approval.rejected", "limit": 1})).json()["items"]
    assert [(one["target"], one["actor"]) for one in trail] == [(other["approval_id"], "local")]
    assert "harbour" not in str(trail)


async def test_a_remembered_decision_says_what_it_covers(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R34: the trail has the kind, and the list the words, which go with the conversation."""
    done = ScriptedReply(text="Done.")
    conversation = await client.create(play(bash("git status --short"), bash("git status -b"), done))
    run_id = await client.chat(conversation, "go")
    request = await client.approval_request(run_id)
    call = request["items"][0]["tool_call_id"]
    decision = {"tool_call_id": call, "decision": "approve", "covers": "begins"}
    await client.request(
        "approval.reply", approval_id=request["approval_id"], decisions=[decision], remember="conversation"
    )
    assert (await client.finished(run_id))["status"] == "completed"

    (remembered,) = await decided(http, conversation, 1)
    (covered,) = remembered["calls"]
    words = "every simple command that begins with `git status`, whatever follows"
    assert (covered["covers"], covered["begins"]) == ({"by": "begins", "words": words}, "git status")
    trail = (await http.get("/v1/audit", params={"action": "approval.approved", "limit": 1})).json()["items"]
    assert (trail[0]["target"], trail[0]["details"]["covers"]) == (request["approval_id"], ["begins"])


async def test_a_cancelled_request_is_listed_and_a_deleted_log_leaves_no_call(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R48: who decided stays in the trail; the call goes with its conversation."""
    conversation = await client.create(play(bash("cat secret-plan"), ScriptedReply(text="unreachable")))
    run_id = await client.chat(conversation, "go")
    await client.approval_request(run_id)
    await http.post(f"/context/runs/{run_id}/cancel")
    (cancelled,) = await decided(http, conversation, 1)
    assert (cancelled["outcome"], cancelled["by"], cancelled["interface"]) == (
        "cancelled",
        "system",
        "system",
    )
    assert [(one["call"], one["decision"]) for one in cancelled["calls"]] == [("cat secret-plan", None)]

    assert (await http.delete(f"/context/conversations/{conversation}")).status_code < 300

    async def emptied() -> dict[str, Any] | None:
        (found,) = await decided(http, conversation, 1)
        return None if found["calls"][0]["call"] else found

    gone = await eventually(emptied)
    assert (gone["title"], gone["calls"][0]["tool"], gone["outcome"]) == ("", "bash", "cancelled")

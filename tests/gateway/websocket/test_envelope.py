"""Fields that every client frame may have, and messages without content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.conftest import Agent, Served
from tests.support.timeouts import deadline


async def test_every_frame_accepts_the_conversation_of_its_envelope(gateway: Served, agent: Agent) -> None:
    """Interfaces, section 3: `{type, id, conversation_id?, …}`."""
    async with gateway.socket() as socket:
        conversation = await socket.create(conversation_id="unused")
        in_it: dict[str, Any] = {"conversation_id": conversation}
        sent = await socket.request("chat.send", content="hi", **in_it)
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        replies = [
            sent,
            await socket.request("ping", **in_it),
            await socket.request("subscribe", **in_it),
            await socket.request("approval.reply", approval_id=request.approval_id, all="approve", **in_it),
            await socket.request("run.cancel", run_id=sent["run_id"], **in_it),
            await socket.request("unsubscribe", **in_it),
        ]
    kinds = [reply["type"] for reply in replies]
    assert kinds == ["ack", "pong", "subscribed", "ack", "ack", "ack"]


@pytest.mark.parametrize(
    ("kind", "field"),
    [("approval.reply", "approval_id"), ("run.cancel", "run_id"), ("input.reply", "request_id")],
)
async def test_a_frame_whose_envelope_names_another_conversation_is_refused(
    gateway: Served, kind: str, field: str
) -> None:
    ids = {"run_id": "c1-0123456789ab", "approval_id": "c1-r-a", "request_id": "c1-r-i"}
    more: dict[str, Any] = {"approval.reply": {"all": "approve"}, "input.reply": {"value": 1}}.get(kind, {})
    async with gateway.socket() as socket:
        refused = await socket.request(kind, conversation_id="c2", **{field: ids[field]}, **more)
    assert (refused["code"], refused["details"]["field"]) == ("bad_request", "conversation_id")
    assert refused["message"] == (
        "conversation_id: expected 'c1', the conversation of the other id, or nothing, got 'c2'"
    )


@pytest.mark.parametrize(
    ("rest", "reply_to"),
    [
        (r'"content": "a\udcff"', "f1"),
        ('"content": "a", "content": "b"', "f1"),
        ('"content": NaN', "f1"),
        ('"content": ' + 200 * "[" + 200 * "]", "f1"),
        ('"content": ', None),
        (r'"id": "\udcff", "content": "a"', None),
    ],
)
async def test_a_frame_that_is_no_strict_json_gets_an_error_with_its_id(
    gateway: Served, rest: str, reply_to: str | None
) -> None:
    async with gateway.socket() as socket, deadline("no error arrived"):
        frame = '{"type": "chat.send", "conversation_id": "c1", "id": "f1", ' + rest + "}"
        await socket.connection.send(frame)
        error = json.loads(await socket.connection.recv())
    assert (error["type"], error["code"], error.get("reply_to")) == ("error", "bad_request", reply_to)


@pytest.mark.parametrize("content", ["", " \n", [], [{"type": "text", "text": ""}]])
async def test_a_message_without_content_is_refused_on_every_interface(gateway: Served, content: Any) -> None:
    async with gateway.socket() as socket, gateway.http as http:
        conversation = await socket.create()
        refused = await socket.request("chat.send", conversation_id=conversation, content=content)
        path = f"/context/conversations/{conversation}/runs"
        over_http = await http.post(path, json={"content": content})
    assert (refused["code"], refused["details"]["field"]) == ("bad_request", "content")
    assert (over_http.status_code, over_http.json()["error"]["field"]) == (400, "content")


async def test_an_unknown_field_is_reported_with_the_nearest_known_one(gateway: Served) -> None:
    async with gateway.socket() as socket, gateway.http as http:
        frame = await socket.request("chat.send", conversation_id="c1", contnet="hi", content="x")
        body = await http.post("/context/conversations", json={"titel": "x"})
        nested = await socket.request("conversation.create", settings={"max_iteration": 3})
    assert nested["message"] == "settings.max_iteration is not a known field; did you mean max_iterations?"
    assert nested["details"]["field"] == "settings.max_iteration"
    assert frame["message"] == "contnet is not a known field; did you mean content?"
    assert body.json()["error"]["message"] == "titel is not a known field; did you mean title?"

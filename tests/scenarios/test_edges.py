"""Invalid input at every interface: the error names it, and nothing else is affected."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from banksman import sdk
from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

BASH = ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "true"}),))


@pytest.mark.parametrize(
    ("frame", "code", "named"),
    [
        ("hello?", "bad_request", "JSON"),
        ('{"type": "ping"', "bad_request", "JSON"),
        ("[]", "bad_request", "object"),
        ('{"id": "1"}', "bad_request", "type"),
        ('{"type": "tool.call", "id": "1"}', "unknown_type", "tool.call"),
        ('{"type": "chat.send", "id": "1", "content": "hi"}', "bad_request", "conversation_id"),
        ('{"type": "chat.send", "id": "1", "conversation_id": "c1"}', "bad_request", "content"),
        ('{"type": "conversation.create", "id": "1", "tools": []}', "bad_request", "tools"),
        (
            '{"type": "conversation.create", "id": "1", "settings": {"max_iterations": "3"}}',
            "bad_request",
            "settings.max_iterations",
        ),
        (
            '{"type": "conversation.create", "id": "1", "settings": {"max_iterations": 0}}',
            "bad_request",
            "settings.max_iterations",
        ),
        ('{"type": "ping", "t": 1, "t": 2}', "bad_request", "duplicate"),
        ('{"type": "ping", "t": NaN}', "bad_request", "NaN"),
        ('{"type": "ping", "t": 1e400}', "bad_request", "larger than a double"),
        ('{"type": "ping", "t": "\\ud800"}', "bad_request", "UTF-8"),
        ('{"type": "ping", "t": ' + "[" * 300 + "]" * 300 + "}", "bad_request", "deep"),
        ('{"type": "ping", "t": ' + "[" * 100_000 + "}", "bad_request", "deep"),
    ],
)
async def test_a_bad_frame_is_named_and_the_connection_stays(
    client: Client, frame: str, code: str, named: str
) -> None:
    """R39, R37: an unreadable frame only gets an error as its response."""
    await client.connection.send(frame)

    error = await client.wait_for(lambda frame: frame["type"] == "error")

    assert (error["code"], named in error["message"]) == (code, True), error
    assert (await client.request("ping", t="still here"))["t"] == "still here"


@pytest.mark.parametrize(
    ("data", "text", "code"),
    [(b"{}", False, 4400), (b'{"type": "\xff"}', True, 1007), (b"x" * 300_000, True, 1009)],
    ids=["binary", "invalid utf-8", "oversized"],
)
async def test_an_unreadable_frame_closes_the_connection_with_its_code(
    system: System, data: bytes, text: bool, code: int
) -> None:
    """R39: binary frames, invalid UTF-8 and oversized frames close only their own connection."""
    async with connect(system.url.replace("http", "ws", 1) + "/ws", compression=None) as socket:
        await socket.send(json.dumps({"type": "hello"}))
        await socket.send(data, text=text)

        assert await _closed(socket) == code


@pytest.mark.parametrize(
    ("type", "fields"),
    [
        ("chat.send", {"conversation_id": "c-nobody", "content": "hi"}),
        ("subscribe", {"conversation_id": "c-nobody"}),
        ("run.cancel", {"run_id": "c-nobody-0123456789ab"}),
        ("conversation.create", {"assistant": "nobody"}),
        ("input.reply", {"request_id": "nobody", "value": 1}),
    ],
)
async def test_an_unknown_id_returns_not_found(client: Client, type: str, fields: dict[str, Any]) -> None:
    """R39: the error contains the unknown id."""
    refused = await client.request(type, **fields)

    assert (refused["type"], refused["code"]) == ("error", "not_found")
    assert "nobody" in refused["message"]


async def test_a_model_without_a_known_provider_is_refused(client: Client) -> None:
    """R80: the model's name contains its provider."""
    refused = await client.request("conversation.create", model="mystery:one")

    assert (refused["code"], refused["details"]["field"]) == ("bad_request", "model")
    assert "provider:model" in refused["message"]


@pytest.mark.parametrize(
    "decisions",
    [
        {},
        {"all": "approve", "decisions": [{"tool_call_id": "k1", "decision": "approve"}]},
        {"decisions": [{"tool_call_id": "somebody-elses", "decision": "approve"}]},
        {"all": "maybe"},
    ],
)
async def test_an_incomplete_decision_leaves_the_approval_request_open(
    client: Client, play: Play, decisions: dict[str, Any]
) -> None:
    """R12, R39: every call needs one decision; otherwise the reply is refused and the loop still waits."""
    conversation = await client.create(play(BASH, ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)

    refused = await client.request("approval.reply", approval_id=approval_request["approval_id"], **decisions)

    assert (refused["type"], refused["code"]) == ("error", "bad_request")
    await client.approve(run_id)
    assert (await client.finished(run_id))["status"] == "completed"


async def test_a_repeated_frame_gets_the_same_response_and_runs_once(
    system: System, client: Client, play: Play, model: ScriptedModel
) -> None:
    """R39: the id of a frame is its idempotency key, also on the connection after a lost one."""
    name = play(ScriptedReply(text="once"))
    conversation, id = await client.create(name), new_id("f")
    fields = {"id": id, "conversation_id": conversation, "content": "go"}

    first = await client.request("chat.send", **fields)
    await client.finished(first["run_id"])
    async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as again:
        second = await again.request("chat.send", **fields)

    assert first == second
    assert len(model_requests(model, name)) == 1


async def test_cancelling_a_finished_run_changes_nothing(client: Client, play: Play) -> None:
    """R39: a late cancel gets a response, and changes nothing."""
    conversation = await client.create(play(ScriptedReply(text="ok"), ScriptedReply(text="next")))
    run_id = await client.chat(conversation, "go")
    await client.finished(run_id)

    ack = await client.request("run.cancel", run_id=run_id)
    outcome = await client.run(conversation, "more")

    assert (ack["type"], outcome["status"], outcome["content"]) == ("ack", "completed", "next")
    assert len(client.events(conversation, "run.finished")) == 2


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "field"),
    [
        ("POST", "/context/conversations", b"{", 400, "body"),
        ("POST", "/context/conversations", b'{"titel": "x"}', 400, "titel"),
        ("POST", "/v1/chat", b"{}", 400, "content"),
        ("POST", "/v1/chat?wait_s=999", b'{"content": "hi"}', 400, "wait_s"),
        ("GET", "/context/conversations?limit=0", b"", 400, "limit"),
        ("GET", "/context/conversations/c-nobody", b"", 404, None),
        ("GET", "/context/runs/c-nobody-r1r1r1r1r1r1", b"", 404, None),
        ("GET", "/context/runs/not%20an%20id", b"", 400, "run_id"),
        ("GET", "/context/nothing", b"", 404, None),
        ("PUT", "/v1/chat", b"", 405, None),
    ],
)
async def test_an_invalid_request_is_refused_with_its_field(
    http: httpx.AsyncClient, method: str, path: str, content: bytes, status: int, field: str | None
) -> None:
    """R39: status and JSON body report the error, never a bare 500."""
    response = await http.request(method, path, content=content)

    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] and error["message"]
    assert field is None or error["field"] == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b"{}", "content"),
        (b'{"content": 7}', "content"),
        (b'{"content": "hi", "mode": "fast"}', "mode"),
    ],
)
async def test_an_invalid_start_over_nats_is_refused(
    nats: sdk.Client, operator: Bus, body: bytes, field: str
) -> None:
    """R39, R114: the response names the field, and nothing is stored."""
    conversation = await nats.create_conversation()

    response = json.loads(
        await operator.request(subjects.api("local", "chat", "send", conversation), body, 5)
    )

    assert (response["type"], response["code"]) == ("error", "bad_request")
    assert response["details"]["field"].startswith(field)


async def test_an_undecodable_message_in_the_run_queue_is_dead_lettered(
    client: Client, operator: Bus, play: Play
) -> None:
    """R39, R108: undecodable bytes are stored with the reason, and the agents continue with other
    messages."""
    conversation = await client.create(play(ScriptedReply(text="I am fine.")))
    subject = subjects.run_work("local", conversation)
    poison = b'{"type": "start", "tenant": 7}'

    await durable(operator, subject, poison, msg_id=new_id("poison"))
    outcome = await client.run(conversation, "hi")

    assert outcome["content"] == "I am fine."
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not (
            letters := [one.letter async for one in dead_letters(operator) if one.letter.subject == subject]
        ):
            await operator.ready()
    assert (b64decode(letters[0].payload_base64), "tenant" in letters[0].reason) == (poison, True)


async def _closed(socket: ClientConnection) -> int | None:
    """Return the close code of a connection."""
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                await socket.recv()
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None

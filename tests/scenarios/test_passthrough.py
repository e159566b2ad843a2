"""External clients use the vendors' own APIs through the gateway, which adds nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx
import pytest

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import HttpError, ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel
from tests.support.timeouts import WAIT_TIMEOUT_S

SYSTEM = "You are  Cline;\n\tkeep\u2028 every bÿte. {{user_message}} ## Tools"
"""Text that a template, a clean-up or our own prompt would change."""

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PATHS = [CHAT, MESSAGES]


NEW_EACH_TIME = {"id", "created", "request_id"}
HEADERS = {"content-type": "application/json", "anthropic-version": "2023-06-01"}


@pytest.fixture
async def vendor(model: ScriptedModel) -> AsyncGenerator[httpx.AsyncClient]:
    """The vendor's API without a gateway."""
    async with httpx.AsyncClient(base_url=model.url, timeout=WAIT_TIMEOUT_S) as direct:
        yield direct


def body(path: str, model: str, **fields: Any) -> bytes:
    """Return a request that no serialiser of ours would write in this form."""
    said = [{"role": "user", "content": "hi"}]
    if path == CHAT:
        fields |= {"messages": [{"role": "system", "content": SYSTEM}, *said]}
    else:
        fields |= {"system": SYSTEM, "messages": said, "max_tokens": 50}
    written = json.dumps({"model": model.partition(":")[2], "temperature": 1.0, **fields}, indent=3)
    return written.replace('"hi"', '"h\\u0069"').encode()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_the_clients_bytes_reach_the_vendor_unchanged(
    http: httpx.AsyncClient, play: Play, model: ScriptedModel, path: str, streams: bool
) -> None:
    """R23, R26, R111: prompt, unknown fields and spacing are unchanged; no tool and no prompt is added."""
    name = play(ScriptedReply(text="As you wish."))
    sent = body(path, name, stream=streams, metadata={"user_id": "x"})

    response = await http.post(path, content=sent, headers=HEADERS)

    [recorded] = model.requests(name.rpartition("/")[2])
    assert response.status_code == 200
    assert recorded["raw"].encode() == sent
    assert recorded["path"] == path
    assert "wish." in response.text


@pytest.mark.parametrize("path", PATHS)
async def test_a_complete_reply_equals_the_reply_of_the_vendor(
    http: httpx.AsyncClient, vendor: httpx.AsyncClient, play: Play, path: str
) -> None:
    """R23: all fields are equal, except the ids and times that the vendor assigns to each reply."""
    call = ScriptedCall(name="edit", arguments={"file": "a.py"}, id="call_1")
    sent = body(path, play(ScriptedReply(text="Editing.", tool_calls=(call,))))

    through = await http.post(path, content=sent, headers=HEADERS)
    direct = await vendor.post(path, content=sent, headers=HEADERS)

    assert (through.status_code, set(through.json())) == (200, set(direct.json()))
    assert _stable(through.json()) == _stable(direct.json())


@pytest.mark.parametrize("path", PATHS)
async def test_a_streamed_reply_has_the_vendors_events(
    http: httpx.AsyncClient, vendor: httpx.AsyncClient, play: Play, path: str
) -> None:
    """R23: the same events in the same order, the last one included."""
    sent = body(path, play(ScriptedReply(text="one two three", chunk_chars=4)), stream=True)

    through = await http.post(path, content=sent, headers=HEADERS)
    direct = await vendor.post(path, content=sent, headers=HEADERS)

    assert through.headers["content-type"].startswith("text/event-stream")
    assert _shape(through.text) == _shape(direct.text)
    assert len(_shape(through.text)) > 4


@pytest.mark.parametrize("path", PATHS)
async def test_the_vendors_errors_pass_unchanged(
    http: httpx.AsyncClient, vendor: httpx.AsyncClient, play: Play, path: str
) -> None:
    """R23: status, body and the time to retry after."""
    fault = HttpError(status=429, message="Slow down.", retry_after_s=7)
    sent = body(path, play(ScriptedReply(fault=fault)))

    through = await http.post(path, content=sent, headers=HEADERS)
    direct = await vendor.post(path, content=sent, headers=HEADERS)

    assert (through.status_code, _stable(through.json())) == (429, _stable(direct.json()))
    assert through.headers["retry-after"] == direct.headers["retry-after"]


async def test_the_vendors_models_are_listed(http: httpx.AsyncClient) -> None:
    """R23: the list that clients request first, in OpenAI's format."""
    listed = (await http.get("/v1/models")).json()

    assert listed["object"] == "list" and listed["data"]
    assert all({"id", "object", "created", "owned_by"} <= set(model) for model in listed["data"])


async def test_the_path_alone_decides_the_mode(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R24, R26, R111: the same model, called by both paths; only the context's request is enhanced."""
    name = play(ScriptedReply(text="ok"))
    headers = HEADERS | {"x-mode": "context", "x-banksman-mode": "context", "user-agent": "banksman"}
    await http.post(CHAT, content=body(CHAT, name), headers=headers)
    conversation = await client.create(name)
    await client.run(conversation, "hi")

    plain, enhanced = model_requests(model, name)

    assert plain["messages"][0]["content"] == SYSTEM and "tools" not in plain
    assert "## Tools" in enhanced["messages"][0]["content"] and enhanced["tools"]


async def test_passthrough_leaves_no_trace_in_the_context(http: httpx.AsyncClient, play: Play) -> None:
    """R26: no conversation, no run; the two modes share nothing but the address."""
    before = (await http.get("/context/conversations")).json()["items"]

    await http.post(CHAT, content=body(CHAT, play(ScriptedReply(text="ok"))), headers=HEADERS)

    assert (await http.get("/context/conversations")).json()["items"] == before


def _shape(stream: str) -> list[Any]:
    """Return the events of a stream without the values that the vendor generates for each."""
    events: list[Any] = []
    for line in stream.splitlines():
        if line.startswith("data: {"):
            events.append(_stable(json.loads(line.removeprefix("data: "))))
        elif line:
            events.append(line)
    return events


def _stable(value: Any) -> Any:
    """Return a JSON value without the values that the vendor generates for each reply."""
    if isinstance(value, dict):
        members = cast(dict[str, Any], value).items()
        return {key: _stable(member) for key, member in members if key not in NEW_EACH_TIME}
    return value

"""A client's trace continues through a run: in its record, its model requests, its calls and the logs."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from banksman import sdk
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

READ = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "none"}),))
FINAL = ScriptedReply(text="Done.")
MALFORMED = "00-not-a-trace-01"


def new_trace() -> tuple[str, str]:
    """Return a trace id, and a `traceparent` of it."""
    trace_id = secrets.token_hex(16)
    return trace_id, f"00-{trace_id}-{secrets.token_hex(8)}-01"


def headers_of(model: ScriptedModel, name: str) -> list[dict[str, str]]:
    """Return the headers of a model's requests, oldest first."""
    return [request["headers"] for request in model.requests(name.rpartition("/")[2])]


@asynccontextmanager
async def calls_of(operator: Bus) -> AsyncIterator[list[Message]]:
    """The messages that send calls to runners and tool servers while the block runs."""
    seen: list[Message] = []

    async def received(message: Message) -> None:
        seen.append(message)

    subscription = await operator.subscribe(subjects.tool_call(ANY, ANY, ANY), received)
    try:
        yield seen
    finally:
        await subscription.unsubscribe()


async def test_a_trace_reaches_models_calls_logs_and_the_record_of_its_run(
    http: httpx.AsyncClient, model: ScriptedModel, play: Play, operator: Bus, system: System
) -> None:
    trace_id, traceparent = new_trace()
    body = {"content": "Read it.", "model": play(READ, FINAL)}
    async with calls_of(operator) as calls:
        started = await http.post(
            "/v1/chat", json=body, params={"wait_s": WAIT_TIMEOUT_S}, headers={"traceparent": traceparent}
        )
    run = started.json()
    found = (await http.get("/context/search", params={"q": trace_id})).json()["items"]

    assert (run["status"], run["trace_id"]) == ("completed", trace_id)
    assert [one["run_id"] for one in found] == [run["run_id"]]
    sent = [headers["traceparent"] for headers in headers_of(model, body["model"])]
    assert [one[:36] for one in sent] == [traceparent[:36]] * 2
    assert len({traceparent, *sent}) == 3, "each request is a child of its own"
    bodies = [json.loads(one.data) for one in calls]
    assert [one["traceparent"] for one in bodies if one["run_id"] == run["run_id"]] == [traceparent]
    logs = sorted(path for path in system.data_dir.glob("logs/agent*.log") if trace_id in path.read_text())
    assert logs, "the log lines of the agent have the trace id"


async def test_a_malformed_trace_is_ignored(
    http: httpx.AsyncClient, model: ScriptedModel, play: Play
) -> None:
    body = {"content": "Go.", "model": play(FINAL)}
    started = await http.post(
        "/v1/chat", json=body, params={"wait_s": WAIT_TIMEOUT_S}, headers={"traceparent": MALFORMED}
    )

    assert started.json()["status"] == "completed" and "trace_id" not in started.json()
    assert "traceparent" not in headers_of(model, body["model"])[0]


async def test_a_frame_names_its_own_trace(client: Client, http: httpx.AsyncClient, play: Play) -> None:
    trace_id, traceparent = new_trace()
    conversation = await client.create(play(FINAL, FINAL))
    traced = await client.chat(conversation, "Go.", traceparent=traceparent)
    await client.finished(traced)
    plain = await client.chat(conversation, "Go.", traceparent=MALFORMED)
    await client.finished(plain)

    runs = (await http.get(f"/context/conversations/{conversation}/runs")).json()["items"]
    assert {run["run_id"]: run.get("trace_id") for run in runs} == {traced: trace_id, plain: None}
    [started] = [one for one in client.events(conversation, "run.started") if one["run_id"] == traced]
    assert started["data"]["traceparent"] == traceparent


@pytest.mark.parametrize("request_name", ["chat.send", "workflow.start"])
async def test_a_trace_arrives_over_nats(
    request_name: str, nats: sdk.Client, operator: Bus, http: httpx.AsyncClient, play: Play
) -> None:
    trace_id, traceparent = new_trace()
    if request_name == "chat.send":
        conversation = await nats.create_conversation(model=play(FINAL))
        subject, body = subjects.api("local", "chat", "send", conversation), {"content": "Go."}
    else:
        subject = subjects.api("local", "workflow", "start", "create_project")
        body = {"parameters": {"name": new_id("p").lower()}}
    reply = await operator.request(
        subject,
        json.dumps(body).encode(),
        WAIT_TIMEOUT_S,
        headers={"Banksman-Request-Id": new_id("r"), "traceparent": traceparent},
    )
    ack = json.loads(reply)
    assert "run_id" in ack, ack

    async def recorded() -> bool:
        return (await http.get(f"/context/runs/{ack['run_id']}")).json().get("trace_id") == trace_id

    await eventually(recorded, WAIT_TIMEOUT_S)
    await http.post(f"/context/runs/{ack['run_id']}/cancel", json={})

"""`/v1/schemas/ws.json` describes the frames that are sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast, get_args

import jsonschema_rs
import pytest
from tests.contracts.messages.samples import samples
from tests.gateway.conftest import SIGNING_KEY, Agent, Served

from banksman.bus.secrets import output_ticket
from banksman.contracts import subjects
from banksman.contracts.calls import CallProgress
from banksman.contracts.event_frames import event_frame
from banksman.contracts.events import KNOWN_TYPES, Event, KnownBody
from banksman.contracts.live_output import Delta
from banksman.gateway.interfaces.http.routes import websocket_schema

TIME = datetime(2026, 1, 2, tzinfo=UTC)
BODIES: tuple[type[Any], ...] = get_args(get_args(KnownBody)[0])
EVENTS = [
    Event(seq=4, ts=TIME, run_id="c1-r", iteration=1, data=cast(Any, body))
    for _, body in samples()
    if isinstance(body, BODIES)
]


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have no further members: it fails if a frame has an undescribed field."""
    closed = {
        name: {"additionalProperties": False, **value} if "properties" in value else value
        for name, value in schema["$defs"].items()
    }
    frames = [{"additionalProperties": False, **frame} for frame in schema["oneOf"]]
    return {**schema, "oneOf": frames, "$defs": closed}


def test_the_samples_have_every_type_of_event() -> None:
    assert {event.data.type for event in EVENTS} >= KNOWN_TYPES


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.data.type)
def test_a_frame_of_every_event_matches_the_published_schema(event: Event) -> None:
    """Interfaces, section 3: server to client, events."""
    frame = event_frame(event, "c1", "e1", 3)
    jsonschema_rs.validate(strict(websocket_schema()["events"]), frame)


def test_stored_fields_that_are_not_sent_are_not_described() -> None:
    described = websocket_schema()["events"]["$defs"]
    stored = {"MessageCompleted": {"type", "provider_state", "provider", "usage"}, "ToolResult": {"changed"}}
    assert [name for name, fields in stored.items() if fields & set(described[name]["properties"])] == []


@pytest.mark.parametrize("detail", ["final", "steps", "full"])
async def test_every_frame_of_a_run_matches_the_published_schemas(
    gateway: Served, agent: Agent, tenant: str, detail: str
) -> None:
    async with gateway.socket() as socket, gateway.http as http:
        schemas = (await http.get("/v1/schemas/ws.json")).json()
        conversation = await socket.create(detail=detail)
        sent = await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        ids: Any = {"conversation_id": conversation, "run_id": start.run_id}
        delta = Delta(message_id="m1", kind="reasoning", offset=0, text="hm", **ids)
        started = CallProgress(tool_call_id="k1", kind="started", runner="r1", **ids)
        ticket = output_ticket(SIGNING_KEY.encode(), tenant, started, "r1")
        started = started.model_copy(update={"ticket": ticket})
        output = started.model_copy(update={"kind": "output", "stream": "stdout", "text": "x"})
        messages = [
            (subjects.delta(tenant, conversation), one)
            for one in (delta, delta.model_copy(update={"kind": "message"}))
        ]
        messages += [(subjects.tool_progress(tenant, conversation), one) for one in (started, output)]
        for subject, message in messages:
            await gateway.bus.publish(subject, message.model_dump_json().encode())
        request = await agent.request_approval(start)
        await socket.until_type("approval.requested")
        await socket.request("subscribe", conversation_id=conversation, after_seq=0, detail=detail)
        await socket.request("approval.reply", approval_id=request.approval_id, all="approve")
        await socket.request("run.cancel", run_id=sent["run_id"])
        await agent.finish(start)
        await socket.until_type("run.finished")
        await socket.request("ping")
        await socket.request("subscribe", conversation_id="missing")
    events, server = strict(schemas["events"]), schemas["server"]
    frames = [*socket.frames, socket.welcome]
    assert len({frame["type"] for frame in frames}) >= {"final": 10, "steps": 12, "full": 13}[detail]
    for frame in frames:
        jsonschema_rs.validate(events if "data" in frame else server, frame)

"""Export and import of conversations, through real agents."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
ID = re.compile(r"\b[cmki][0-9a-z]{21}(?:-[0-9a-z]{12}){0,2}\b")


async def _exported(http: httpx.AsyncClient, conversation_id: str) -> dict[str, Any]:
    where = f"/context/conversations/{conversation_id}"
    events = (await http.get(f"{where}/events", params={"whole": True})).json()
    assert events["next"] is None
    return {"conversation": (await http.get(where)).json(), "events": events["items"]}


async def _imported(http: httpx.AsyncClient, export: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the result of an import, and the export of the new conversation with all its events."""
    reply = await http.post("/context/conversations/import", content=json.dumps(export))
    assert reply.status_code == 201, reply.text
    [result] = reply.json()["items"]
    assert result["error"] is None, result

    async def whole() -> dict[str, Any] | None:
        again = await _exported(http, result["conversation_id"])
        return again if len(again["events"]) >= len(export["events"]) else None

    return result, await eventually(whole)


def _comparable(export: dict[str, Any]) -> Any:
    """Return the events with ids by the order of their first appearance, without what an import must change.

    That are ids, the epoch of the log, the mark `imported`, and the object of a complete output.
    """
    events = [
        {name: value for name, value in event.items() if name not in ("log_epoch", "imported")}
        for event in export["events"]
    ]
    for event in events:
        if event["type"] == "tool_call.completed":
            event["data"] = event["data"] | {"output_ref": None}
    ids: dict[str, str] = {}
    return json.loads(ID.sub(lambda found: ids.setdefault(found[0], f"id{len(ids)}"), json.dumps(events)))


async def test_an_export_is_imported_and_exported_again_without_loss(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """Calls, results, an image, reasoning, a rejected call, an edited one, a branch; a second time too."""
    name = play(
        ScriptedReply(reasoning="A list, then.", tool_calls=bash("echo one > a.txt; seq 9000").tool_calls),
        ScriptedReply(text="Listed."),
        bash("touch two", "touch three"),
        ScriptedReply(text="Otherwise, then."),
        ScriptedReply(text="Continued."),
    )
    conversation = await client.create(name)
    content = [{"type": "text", "text": "What is this?"}, {"type": "image", "url": PIXEL}]
    ack = await client.request("chat.send", conversation_id=conversation, content=content)
    first = str(ack["run_id"])
    await client.approve(first, remember="conversation")
    await client.finished(first)
    second = await client.chat(conversation, "More")
    asked = await client.approval_request(second)
    one, two = (item["tool_call_id"] for item in asked["items"])
    decisions = [
        {"tool_call_id": one, "decision": "approve", "arguments": {"command": "touch zwei"}},
        {"tool_call_id": two, "decision": "reject", "reason": "Not three.", "on_reject": "feedback"},
    ]
    await client.request("approval.reply", approval_id=asked["approval_id"], decisions=decisions)
    await client.finished(second)
    [reply] = [
        e for e in client.events(conversation, "message.completed") if e["data"]["content"] == "Listed."
    ]
    branch = {"after": reply["data"]["message_id"]}
    third = await client.chat(conversation, "Otherwise?", branch=branch)
    await client.approve(third)
    await client.finished(third)

    export = await _exported(http, conversation)
    result, once = await _imported(http, export)
    assert _comparable(once) == _comparable(export)
    assert (result["runs"], result["product"], result["left_out"]) == (3, "banksman", {"tool_call.output": 1})
    kinds = {event["type"] for event in once["events"]}
    assert {"reasoning.completed", "approval.resolved", "workspace.changed", "tool_call.completed"} <= kinds
    assert all(event["imported"] for event in once["events"])
    assert [event["ts"] for event in once["events"]] == [event["ts"] for event in export["events"]]
    _, twice = await _imported(http, once)
    assert _comparable(twice) == _comparable(once)

    # The conversation continues, and the remembered approval of the file approves nothing.
    new = result["conversation_id"]
    await client.request("subscribe", conversation_id=new, after_seq=0)
    await client.finished(await client.chat(new, "And now?", overrides={"model": name}))
    sent = json.dumps(model_requests(model, name)[-1])
    assert "Otherwise?" in sent and "More" not in sent and PIXEL in sent and "And now?" in sent
    assert (await http.get("/context/remembered")).json()["items"][0]["conversation_id"] == conversation

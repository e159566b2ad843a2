"""One reply with several calls and different outcomes: the history stays valid (P11)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import Stage, until
from tests.support.chaos.plans import FEEDBACK, command
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

VENDORS = ("openai", "anthropic")
FATES = ("lost", "refused", "done")
"""The three calls in the order of the reply; their results arrive in reverse order."""


async def test_every_vendor_accepts_a_lost_a_rejected_and_a_completed_call_of_one_reply(
    stage: Stage,
) -> None:
    """P2, P11, A23: three results in the order of the calls, and either vendor accepts the next message."""
    markers = {vendor: new_id("mark-") for vendor in VENDORS}
    async with stage.connected() as client:
        begun = {vendor: await _begun(stage, client, vendor, markers[vendor]) for vendor in VENDORS}
        await until(lambda: all(stage.fleet.executions(f"{mark}-lost") == 1 for mark in markers.values()))
        stage.fleet["tool-runner-1"].kill()
        outcomes = {vendor: await client.finished(run_id) for vendor, (_, run_id) in begun.items()}
        for vendor, (conversation, _) in begun.items():
            for other in VENDORS:
                model = f"{other}:scripted/{_script(markers[vendor])}"
                after = await client.run(conversation, "and now?", overrides={"model": model})
                assert (after["status"], after["content"]) == ("completed", "Well then.")

    for vendor, (conversation, _) in begun.items():
        asked = [
            event["data"]["tool_call_id"] for event in client.events(conversation, "tool_call.requested")
        ]
        done = {
            event["data"]["tool_call_id"]: event["data"]["error_kind"]
            for event in client.events(conversation, "tool_call.completed")
        }
        assert outcomes[vendor]["status"] == "completed"
        assert [done[call_id] for call_id in asked] == ["unknown_outcome", "rejected", None]
        executed = [stage.fleet.executions(f"{markers[vendor]}-{fate}") for fate in FATES]
        assert executed == [1, 0, 1]
        results = _results(vendor, stage.model.requests(_script(markers[vendor]))[1].body)
        assert [("unknown" in text, "rejected" in text, "exit_code" in text) for _, text in results] == [
            (True, False, False),
            (False, True, False),
            (False, False, True),
        ]
    assert stage.model.violations == []


async def _begun(stage: Stage, client: Client, vendor: str, marker: str) -> tuple[str, str]:
    """Create a conversation whose first call runs, second is rejected and third waits; return it and its
    run."""
    calls = tuple(
        ScriptedCall(
            name="bash", arguments={"command": command(f"{marker}-{fate}", 600 if fate == "lost" else 0)}
        )
        for fate in FATES
    )
    replies = (
        ScriptedReply(text="Three things.", tool_calls=calls),
        ScriptedReply(text="I see."),
        ScriptedReply(text="Well then."),
    )
    stage.model.play(_script(marker), replies, at_end="repeat")
    conversation = await client.create(f"{vendor}:scripted/{_script(marker)}", assistant=FEEDBACK)
    run_id = await client.chat(conversation, "go")
    asked = await client.approval_request(run_id)
    decisions = [
        {"tool_call_id": item["tool_call_id"], "decision": "reject" if fate == "refused" else "approve"}
        for item, fate in zip(asked["items"], FATES, strict=True)
    ]
    await client.request("approval.reply", approval_id=asked["approval_id"], decisions=decisions)
    return conversation, run_id


def _script(marker: str) -> str:
    return f"fates-{marker}"


def _results(vendor: str, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the results in a model's request with their call ids, checked against the calls' order."""
    messages = body["messages"]
    if vendor == "openai":
        calls = [call["id"] for call in messages[-4]["tool_calls"]]
        results = [(message["tool_call_id"], str(message["content"])) for message in messages[-3:]]
    else:
        calls = [block["id"] for block in messages[-2]["content"] if block["type"] == "tool_use"]
        blocks = [block for block in messages[-1]["content"] if block["type"] == "tool_result"]
        results = [(block["tool_use_id"], json.dumps(block["content"])) for block in blocks]
    assert [call_id for call_id, _ in results] == calls
    return results

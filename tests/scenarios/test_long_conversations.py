"""A long conversation: complete for readers, and within its model's context."""

from __future__ import annotations

import json

import httpx

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System

RUNS = 20


async def test_a_conversation_that_exceeds_its_models_context_loses_no_event(
    system: System, client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R79: each request contains the system prompt, the history or its summary, and the user's message."""
    name = play(ScriptedReply(text="Noted. " + "word " * 300), by="count", at_end="repeat")
    assistant = {"model": name, "limits": {"context_tokens": 4_000}, "system_prompt": "Be brief."}
    made = await http.post("/context/assistants", json=assistant)
    conversation = await client.create(assistant=made.json()["id"])

    for number in range(RUNS):
        outcome = await client.run(conversation, f"Remember number {number}.")
        assert outcome["status"] == "completed"

    bodies = [json.dumps(body) for body in model_requests(model, name)]
    compactions = client.events(conversation, "history.compacted")
    assert len(compactions) >= 2
    assert {one["data"]["how"] for one in compactions} == {"summarised"}
    assert max(len(body) for body in bodies) < 4 * 4_000 + 4_000
    assert f"Remember number {RUNS - 1}." in bodies[-1] and "replaced by this summary" in bodies[-1]

    async with Client.connected(system.url) as late:
        await late.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        await late.wait_for(lambda frame: frame["type"] == "replay.done")
        seen = [frame["seq"] for frame in late.events(conversation)]
        said = [frame["data"]["message"] for frame in late.events(conversation, "run.started")]
    assert seen == list(range(1, len(seen) + 1))
    assert said == [f"Remember number {number}." for number in range(RUNS)]

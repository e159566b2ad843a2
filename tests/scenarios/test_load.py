"""Many parallel sessions and calls, and large outputs."""

from __future__ import annotations

import asyncio
import json

import httpx

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

SESSIONS = 24


async def test_many_parallel_sessions_are_isolated(system: System, play: Play, model: ScriptedModel) -> None:
    """R39: each has its own conversation, workspace, approval request and outcome; no event is lost or
    repeated."""
    name = play(
        ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "mine.txt"}),)),
        ScriptedReply(
            tool_calls=(ScriptedCall(name="write_file", arguments={"path": "mine.txt", "content": "x"}),)
        ),
        ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "mine.txt"}),)),
        ScriptedReply(text="Done."),
    )

    async def session(number: int) -> None:
        async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as client:
            conversation = await client.create(name)
            run_id = await client.chat(conversation, f"session {number}")
            await client.approve(run_id)
            outcome = await client.finished(run_id)
            assert (outcome["status"], outcome["content"]) == ("completed", "Done.")
            assert [entry["result"]["success"] for entry in outcome["tool_calls"]] == [False, True, True]
            seqs = [event["seq"] for event in client.events(conversation)]
            assert seqs == list(range(1, len(seqs) + 1))
            assert {f.get("conversation_id", conversation) for f in client.frames} == {conversation}

    async with asyncio.TaskGroup() as group:
        for number in range(SESSIONS):
            group.create_task(session(number))

    assert len(model_requests(model, name)) == SESSIONS * 4


async def test_many_calls_of_one_reply_are_executed_with_results_in_order(client: Client, play: Play) -> None:
    """R39, R34: one approval request for all of them, one result for each."""
    commands = [f"echo {number}" for number in range(16)]
    calls = tuple(ScriptedCall(name="bash", arguments={"command": command}) for command in commands)
    conversation = await client.create(play(ScriptedReply(tool_calls=calls), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    await client.approve(run_id)

    outcome = await client.finished(run_id)

    assert [entry["result"]["stdout"] for entry in outcome["tool_calls"]] == [f"{n}\n" for n in range(16)]


async def test_a_large_output_is_stored_whole_and_shown_in_part(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    """R41: of ten megabytes the model gets 10,000 characters and can page; users can download all of it."""
    lines = 1_500_000
    look = ScriptedCall(name="bash", arguments={"command": f"seq 1 {lines}"})
    name = play(ScriptedReply(tool_calls=(look,)), ScriptedReply(text="Long."))
    conversation = await client.create(name)
    run_id = await client.chat(conversation, "go")
    await client.approve(run_id)
    outcome = await client.finished(run_id)
    [completed] = client.events(conversation, "tool_call.completed")
    path = f"/context/runs/{run_id}/tool-calls/{completed['data']['tool_call_id']}/output"

    whole = await http.get(path)

    result = json.loads(model_requests(model, name)[1]["messages"][-1]["content"])
    assert outcome["status"] == "completed" and completed["data"]["truncated"] is True
    assert (len(result["stdout"]) <= 10_000, result["truncated"]) == (True, True)
    assert result["full_output_path"]
    assert len(whole.content) > 10_000_000
    assert whole.text.startswith("1\n2\n") and f"\n{lines}\n" in whole.text

"""Undecodable bytes in the slots of a call: the call ends, and blocks nothing (P2, P10)."""

from __future__ import annotations

import base64

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished
from banksman.contracts.ids import attempt_id, new_id
from banksman.contracts.tools import ToolResult
from tests.scenarios.conftest import Play
from tests.scenarios.test_approvals import bash
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply

pytestmark = pytest.mark.timeout(120)


async def _parked(client: Client, play: Play) -> tuple[str, str, str]:
    """A run whose call waits for a decision: its conversation, its id and the call's first attempt."""
    conversation = await client.create(play(bash("echo ran > ran"), ScriptedReply(text="I see.")))
    run_id = await client.chat(conversation, "go")
    [item] = (await client.approval_request(run_id))["items"]
    return conversation, run_id, attempt_id(item["tool_call_id"], 1)


async def _files(http: httpx.AsyncClient, conversation: str) -> list[str]:
    found = (await http.get(f"/context/conversations/{conversation}/files")).json()["items"]
    return [one["path"] for one in found]


async def _ended_as(client: Client, conversation: str, run_id: str) -> str:
    """Return how the call ended, after the end of its run."""
    await client.approve(run_id)
    outcome = await client.finished(run_id)
    assert (outcome["status"], outcome["content"]) == ("completed", "I see.")
    [completed] = client.events(conversation, "tool_call.completed")
    return str(completed["data"]["error_kind"])


async def test_an_undecodable_start_ends_its_call_without_execution(
    operator: Bus, client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """P2, P10: the runner treats it as another's start; the owner reports an unknown outcome."""
    conversation, run_id, attempt = await _parked(client, play)
    subject = subjects.tool_started("local", attempt)
    await durable(operator, subject, b"\xff", msg_id=new_id("x"))

    assert await _ended_as(client, conversation, run_id) == "unknown_outcome"
    assert await _files(http, conversation) == []
    [letter] = [one.letter async for one in dead_letters(operator) if one.letter.subject == subject]
    assert base64.b64decode(letter.payload_base64) == b"\xff"


async def test_an_undecodable_result_ends_its_executed_call(
    operator: Bus, client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """P2, P10: the result of the command is stored as a note."""
    conversation, run_id, attempt = await _parked(client, play)
    subject = subjects.tool_result("local", attempt)
    await durable(operator, subject, b"\xff", msg_id=new_id("x"))

    assert await _ended_as(client, conversation, run_id) == "unknown_outcome"
    assert await _files(http, conversation) == ["ran"]
    letters = [one.letter async for one in dead_letters(operator) if one.letter.subject == subject]
    assert sorted(letter.stream for letter in letters) == ["NOTES", "RESULTS"]


async def test_a_stored_result_of_another_call_is_rejected(operator: Bus, client: Client, play: Play) -> None:
    """P2, P11."""
    conversation, run_id, attempt = await _parked(client, play)
    result = ToolResult(tool_call_id=new_id("k"), content={"success": True, "stdout": "of another"})
    foreign = CallFinished(conversation_id=conversation, attempt=attempt, result=result)
    payload = foreign.model_dump_json(by_alias=True).encode()
    await durable(operator, subjects.tool_result("local", attempt), payload, msg_id=new_id("x"))

    assert await _ended_as(client, conversation, run_id) == "unknown_outcome"

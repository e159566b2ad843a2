"""Agents and gateways that die, freeze or are interrupted during a run."""

from __future__ import annotations

import asyncio
import time

import pytest
from websockets.exceptions import ConnectionClosed

from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import Stage, bash, until
from tests.support.chaos.plans import AUTO, NEEDS_APPROVAL
from tests.support.client import Client, Frame
from tests.support.polling import scripted_delay
from tests.support.scripted_models import Gate, HttpError, ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
"""Seconds; processes are restarted, which is slow on a busy machine."""

AGENTS = ("agent-1", "agent-2")
LONGEST_PAUSE_S = 1.5
"""Maximum seconds from the first failure of a model request to its repetition, with a margin."""
FROZEN_S = 10.0
"""Seconds until clients detect that a server does not respond."""


def terminals(client: Client, conversation: str) -> list[Frame]:
    return client.events(conversation, "run.finished")


async def test_a_model_reply_that_was_not_stored_is_requested_again(stage: Stage, marker: str) -> None:
    """A04: the model is called twice, its calls get other ids, and one of them is executed once."""
    async with stage.connected() as client:
        await stage.arm("agent.reply_received", *AGENTS)
        conversation, run_id = await stage.run(client, bash(marker), ScriptedReply(text="done"))
        outcome = await client.finished(run_id)
        await stage.disarm(*AGENTS)

    assert outcome["status"] == "completed"
    first_requests = [body for body in stage.requests() if not _replies(body)]
    assert len(first_requests) >= 2, "by the agent that died with the reply, and by another"
    assert len(client.events(conversation, "tool_call.requested")) == 1
    assert len(client.events(conversation, "tool_call.completed")) == 1
    assert stage.fleet.executions(marker) == 1


async def test_an_ended_run_without_an_ack_is_not_run_again(stage: Stage, marker: str) -> None:
    """P1: the message is redelivered, and has no effect."""
    async with stage.connected() as client:
        await stage.arm("agent.before_ack", *AGENTS)
        conversation, run_id = await stage.run(client, bash(marker), ScriptedReply(text="done"))
        await client.finished(run_id)
        after = await client.run(conversation, "once more")
        await stage.disarm(*AGENTS)

    assert after["status"] == "completed"
    assert len(terminals(client, conversation)) == 2
    assert stage.fleet.executions(marker) == 1


async def test_a_missing_approval_request_of_a_parked_run_is_stored_later(stage: Stage, marker: str) -> None:
    """P3: the log shows that the run waits; the next owner of its message stores the approval request."""
    async with stage.connected() as client:
        await stage.arm("agent.before_approval_request", *AGENTS)
        conversation, run_id = await stage.run(
            client, bash(marker), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL
        )
        approval_request = await client.approval_request(run_id)
        response = await client.decide(approval_request["approval_id"])
        outcome = await client.finished(run_id)
        await stage.disarm(*AGENTS)

    assert response["type"] == "ack", response
    assert outcome["status"] == "completed"
    assert len(client.events(conversation, "approval.requested")) == 1
    assert stage.fleet.executions(marker) == 1


async def test_a_repeated_request_at_another_gateway_returns_the_same_run(stage: Stage, marker: str) -> None:
    """P14: the request was stored; repeated with its id at another gateway, it returns the same run."""
    request = {"id": f"ask-{marker}", "content": "go"}
    async with stage.connected(1) as other:
        conversation = await stage.conversation(other, bash(marker), ScriptedReply(text="done"))
        await stage.arm("gateway.before_response", "gateway-1")
        with pytest.raises(ConnectionClosed):
            async with stage.connected(0) as client:
                await client.send({"type": "chat.send", "conversation_id": conversation, **request})
                await client.connection.wait_closed()
        runs = [await other.chat(conversation, **request) for _ in range(2)]
        outcome = await other.finished(runs[0])
        await stage.fleet["gateway-1"].ready()

    assert len(set(runs)) == 1
    assert outcome["status"] == "completed"
    assert len(other.events(conversation, "run.started")) == 1
    assert stage.fleet.executions(marker) == 1


async def test_a_frozen_owner_is_fenced_by_the_higher_claim(stage: Stage, marker: str) -> None:
    """P5, A12: another agent takes over and finishes; the first one resumes, and changes nothing."""
    async with stage.connected() as client:
        held = bash(marker).model_copy(update={"gate": Gate(name=marker)})
        conversation, run_id = await stage.run(client, held, ScriptedReply(text="done"))
        await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=60)
        driver = stage.fleet[await stage.driver(run_id)]
        driver.freeze()
        try:
            await stage.model.wait_for_requests(stage.scripts[-1], 2, timeout_s=60)
            stage.model.open_gate(marker)
            outcome = await client.finished(run_id)
        finally:
            driver.thaw()
        await until(lambda: _left(driver.log.read_text(errors="replace"), conversation))
        await driver.ready()
        after = await client.run(conversation, "once more")

    assert (outcome["status"], after["status"]) == ("completed", "completed")
    assert len(terminals(client, conversation)) == 2
    assert len(client.events(conversation, "tool_call.requested")) == 1
    assert stage.fleet.executions(marker) == 1


async def test_a_frozen_owner_does_not_repeat_its_model_request_after_a_takeover(
    stage: Stage, marker: str
) -> None:
    """P5: its request fails while it is frozen; the reply to a repeated one would be paid for and discarded.

    The broker is stopped when the owner thaws, so that no message notifies it of the takeover in time.
    """
    failing = ScriptedReply(gate=Gate(name=marker), fault=HttpError(status=503))
    broker = stage.fleet.servers[0]
    async with stage.connected() as client:
        stage.scripts.append(new_id("s"))
        stage.model.play(
            stage.scripts[-1], (failing, ScriptedReply(text="done")), by="count", at_end="repeat"
        )
        conversation = await client.create(f"openai:scripted/{stage.scripts[-1]}", assistant=AUTO)
        run_id = await client.chat(conversation, "go")
        await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=60)
        driver = stage.fleet[await stage.driver(run_id)]
        before = _repeats(driver.log.read_text(errors="replace"))
        driver.freeze()
        try:
            outcome = await client.finished(run_id)
            stage.model.open_gate(marker)
            await broker.stop()
        finally:
            driver.thaw()
        try:
            await until(lambda: _repeats(driver.log.read_text(errors="replace")) > before)
            with pytest.raises(TimeoutError):
                await stage.model.wait_for_requests(stage.scripts[-1], 3, timeout_s=LONGEST_PAUSE_S)
        finally:
            broker.start()
        await until(lambda: _left(driver.log.read_text(errors="replace"), conversation))
        await stage.fleet.ready()

    assert outcome["status"] == "completed"
    assert len(stage.requests()) == 2, "one of each agent"


async def test_runs_continue_after_the_broker_was_frozen_for_ten_seconds(stage: Stage, marker: str) -> None:
    """P1, P2, P3: a running call, a model request and a parked run; nothing happens twice."""
    working, thought, parked = (f"{marker}-{name}" for name in ("working", "thought", "parked"))
    broker = stage.fleet.servers[0]
    async with stage.connected() as client:
        held = bash(thought).model_copy(update={"gate": Gate(name=marker)})
        runs = [await stage.run(client, bash(working, 2.0), ScriptedReply(text="done"))]
        runs.append(
            await stage.run(client, bash(parked), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL)
        )
        runs.append(await stage.run(client, held, ScriptedReply(text="done")))
        approval_request = await client.approval_request(runs[1][1])
        await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=60)
        await until(lambda: stage.fleet.executions(working) == 1)
        broker.freeze()
        try:
            stage.model.open_gate(marker)
            await scripted_delay(FROZEN_S)
        finally:
            broker.thaw()
        response = await client.decide(approval_request["approval_id"])
        outcomes = [await client.finished(run_id) for _, run_id in runs]
        await stage.fleet.ready()
        after = [await client.run(conversation, "once more") for conversation, _ in runs]

    assert response["type"] == "ack", response
    assert [outcome["status"] for outcome in (*outcomes, *after)] == ["completed"] * 6
    assert [len(terminals(client, conversation)) for conversation, _ in runs] == [2, 2, 2]
    assert [stage.fleet.executions(name) for name in (working, thought, parked)] == [1, 1, 1]


async def test_a_run_queued_behind_the_run_of_a_dead_owner_starts(stage: Stage, marker: str) -> None:
    """P1: another agent takes over the run within seconds, finishes it, and starts the next."""
    async with stage.connected() as client:
        held = bash(marker).model_copy(update={"gate": Gate(name=marker)})
        conversation, run_id = await stage.run(client, held, ScriptedReply(text="done"))
        queued = await client.chat(conversation, "and then")
        await client.event("run.queued", run_id=queued)
        await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=60)
        driver = await stage.driver(run_id)
        killed_at = time.monotonic()
        stage.fleet[driver].kill()
        await stage.model.wait_for_requests(stage.scripts[-1], 2, timeout_s=60)
        print(f"taken over after {time.monotonic() - killed_at:.2f} s")  # noqa: T201
        stage.model.open_gate(marker)
        outcomes = [await client.finished(run) for run in (run_id, queued)]
        await stage.fleet[driver].ready()

    assert [outcome["status"] for outcome in outcomes] == ["completed", "completed"]
    assert stage.fleet.executions(marker) == 1


async def test_a_cancel_that_races_with_completion_gives_one_terminal_event(
    stage: Stage, marker: str
) -> None:
    """A16, P7: in either order there is exactly one terminal event."""
    async with stage.connected() as client, stage.connected(1) as other:
        conversations: list[str] = []
        for number in range(12):
            gate = f"{marker}-{number}"
            last = ScriptedReply(text="done", gate=Gate(name=gate))
            conversation, run_id = await stage.run(client, last)
            conversations.append(conversation)
            await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=60)
            async with asyncio.TaskGroup() as race:
                race.create_task(other.request("run.cancel", run_id=run_id))
                stage.model.open_gate(gate)
            await client.finished(run_id)
        ends = [terminals(client, conversation) for conversation in conversations]
        for conversation in conversations:
            assert (await client.run(conversation, "once more"))["status"] == "completed"

    assert [len(found) for found in ends] == [1] * len(conversations)
    assert {end["data"]["status"] for [end] in ends} <= {"completed", "cancelled"}


def _replies(body: dict[str, object]) -> list[object]:
    messages = body["messages"]
    assert isinstance(messages, list)
    return [message for message in messages if message["role"] == "assistant"]


def _repeats(log: str) -> int:
    """Return how often an agent logged that it will repeat a request."""
    return log.count("repeating the model request")


def _left(log: str, conversation: str) -> bool:
    """Return whether an agent logged that it left a message of this conversation to another."""
    return any("it will be delivered again" in line and conversation in line for line in log.splitlines())

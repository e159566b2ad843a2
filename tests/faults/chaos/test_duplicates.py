"""Every message of a run is delivered three more times, in any order."""

from __future__ import annotations

import random

import pytest

from banksman.bus import jetstream, names
from banksman.bus.connection import Bus
from banksman.bus.errors import SlotTaken
from banksman.bus.messages import Message
from banksman.bus.publish import durable
from banksman.contracts.errors import BanksmanError
from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import WAIT_TIMEOUT_S, Stage, bash
from tests.support.chaos.plans import NEEDS_APPROVAL
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

QUEUES = ("run.work", "run.signal")
"""Work queues: a handled message is removed, and is stored again under another id."""
SLOTS = ("approval.request", "approval.reply", "tool.started", "tool.result")
"""Write-once slots: a repeated message is refused."""
REQUESTS = ("tool.call", "tool.cancel")
"""Requests to a runner, which knows its calls."""
REPEATS = 3


async def test_three_redeliveries_of_every_message_in_any_order_change_nothing(
    stage: Stage, marker: str
) -> None:
    """A07: the logs do not change, no call runs again, and the conversation continues."""
    heard: list[Message] = []

    async def record(message: Message) -> None:
        heard.append(message)

    async with stage.fleet.operator() as operator, stage.connected() as client:
        for kind in (*QUEUES, *SLOTS, *REQUESTS):
            await operator.subscribe(f"{kind}.>", record)
        await operator.ready()
        conversations = await _whole_life(stage, client, marker)
        kinds = {
            kind for kind in (*QUEUES, *SLOTS, *REQUESTS) if any(m.subject.startswith(kind) for m in heard)
        }
        before = {one: [event["seq"] for event in client.events(one)] for one in conversations}
        chance = random.Random(marker)
        again = [message for message in heard for _ in range(REPEATS)]
        chance.shuffle(again)
        for message in again:
            await _repeat(operator, message)
        await _handled(operator)
        after = {one: [event["seq"] for event in client.events(one)] for one in conversations}
        later = [await client.run(one, "once more") for one in conversations]

    assert kinds >= {
        *QUEUES,
        "approval.request",
        "approval.reply",
        "tool.started",
        "tool.result",
        "tool.call",
    }
    assert after == before
    assert stage.fleet.executions(marker) == 1
    assert [outcome["status"] for outcome in later] == ["completed"] * len(conversations)


async def _whole_life(stage: Stage, client: Client, marker: str) -> list[str]:
    """Create an approved, a rejected, a cancelled and a steered run, and rename a conversation."""
    approved, run_id = await stage.run(
        client, bash(marker), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL
    )
    await client.approve(run_id)
    await client.finished(run_id)
    rejected, run_id = await stage.run(
        client, bash("mark-rejected"), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL
    )
    await client.approve(run_id, "reject")
    await client.finished(run_id)
    cancelled, run_id = await stage.run(
        client, bash("mark-cancelled"), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL
    )
    await client.approval_request(run_id)
    await client.request("run.cancel", run_id=run_id)
    await client.finished(run_id)
    steered, run_id = await stage.run(
        client, bash("mark-steered"), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL
    )
    await client.approval_request(run_id)
    await client.chat(steered, "leave that", mode="steer")
    await client.finished(run_id)
    return [approved, rejected, cancelled, steered]


async def _repeat(operator: Bus, message: Message) -> None:
    try:
        if message.subject.startswith((*QUEUES, *SLOTS)):
            await durable(operator, message.subject, message.data, msg_id=new_id("again-"), budget_s=10)
        elif message.subject.startswith("tool."):
            await operator.request(message.subject, message.data, timeout_s=5)
    except (BanksmanError, SlotTaken):
        # A taken slot, or a refusal of the runner.
        return


async def _handled(operator: Bus) -> None:
    """Wait until the work queue is empty."""

    async def is_empty() -> bool:
        info = await jetstream.call(operator, names.api("STREAM.INFO", names.RUNS))
        return bool(info["state"]["messages"] == 0)

    await eventually(is_empty, WAIT_TIMEOUT_S, interval_s=0.05)

"""A user compacts a conversation: a run of its own writes the summary, or states why it does not."""

from __future__ import annotations

import asyncio
import json

import pytest

from banksman.bus.queues.handling import Done
from banksman.contracts.events import HistoryCompacted, RunFinished, RunStarted
from banksman.contracts.ids import new_id
from banksman.contracts.work import CancelRun, StartRun, SteerRun
from tests.runs.long.conftest import Agent
from tests.support.model_server import ModelServer
from tests.support.scripted_models import Gate, HttpError, ScriptedReply, ScriptedUsage

LONG = "The harbour of Genoa has 14 basins. " + "word " * 800
SUMMARY = "Genoa was looked up; it has 14 basins."


@pytest.fixture
async def talked(agent: Agent, server: ModelServer) -> str:
    """Two messages with long replies; return the model of the conversation."""
    replies = [ScriptedReply(text=f"{number}. {LONG}") for number in range(2)]
    model = server.play("work", [*replies, ScriptedReply(text="Fourteen.")], by="count")
    for number in range(2):
        await agent.run(f"Question {number}?", f"openai:{model}")
    return f"openai:{model}"


async def test_a_summary_replaces_the_older_messages_before_the_next_run(
    agent: Agent, server: ModelServer, talked: str
) -> None:
    usage = ScriptedUsage(input_tokens=3_000, output_tokens=20)
    server.play("summary", [ScriptedReply(text=SUMMARY, usage=usage)], by="count")

    outcome = await agent.compact(talked)
    await agent.run("How many basins?", talked)

    [compacted] = await agent.events(HistoryCompacted)
    sizes = f"{compacted.tokens_before:,} → {compacted.tokens_after:,} tokens"
    assert outcome.content == f"A summary replaces the older messages: {sizes}."
    assert (outcome.status, outcome.usage.input_tokens) == ("completed", 3_000)
    assert (compacted.how, compacted.summary) == ("summarised", SUMMARY)
    assert compacted.tokens_after < compacted.tokens_before
    last = json.dumps(server.requests("work")[-1].body, ensure_ascii=False)
    assert SUMMARY in last and "How many basins?" in last
    assert "Question 0?" not in last and "Compact the conversation" not in last


async def test_a_short_conversation_has_nothing_to_compact(agent: Agent, server: ModelServer) -> None:
    server.play("summary", [ScriptedReply(text=SUMMARY)], by="count")
    model = f"openai:{server.play('work', [ScriptedReply(text='Hello.')])}"
    await agent.run("Hi.", model)

    outcome = await agent.compact(model)

    assert outcome.status == "completed"
    assert outcome.content.startswith("There is nothing to compact")
    assert server.requests("summary") == []
    assert await agent.events(HistoryCompacted) == []


async def test_a_conversation_without_messages_has_nothing_to_compact(agent: Agent) -> None:
    outcome = await agent.compact("openai:any")

    assert outcome.content.startswith("There is nothing to compact")


@pytest.mark.parametrize(
    "reply", [ScriptedReply(text="x", fault=HttpError(status=400, message="Down.")), ScriptedReply(text=" ")]
)
async def test_no_message_is_lost_if_the_model_writes_no_summary(
    agent: Agent, server: ModelServer, talked: str, reply: ScriptedReply
) -> None:
    server.play("summary", [reply], by="count", at_end="repeat")

    outcome = await agent.compact(talked)
    await agent.run("How many basins?", talked)

    assert outcome.status == "failed"
    assert await agent.events(HistoryCompacted) == []
    assert "Question 0?" in json.dumps(server.requests("work")[-1].body)


async def test_a_compaction_is_cancelled_while_the_summary_is_written(
    agent: Agent, server: ModelServer, talked: str
) -> None:
    server.play("summary", [ScriptedReply(text=SUMMARY, gate=Gate(name="never"))], by="count")
    message = agent.start("Compact the conversation.", talked, compact=True)
    start = StartRun.model_validate_json(message.data)
    driving = asyncio.create_task(agent.worker.on_work(message))
    await server.wait_for_requests("summary", 1)

    cancel = CancelRun(tenant=agent.tenant, conversation_id=agent.conversation, run_id=start.run_id, by="ann")
    await agent.signal(cancel)

    assert await driving == Done()
    assert (await agent.events(RunFinished))[-1].status == "cancelled"
    assert await agent.events(HistoryCompacted) == []


async def test_a_message_that_steers_a_compaction_gets_a_run_of_its_own(
    agent: Agent, server: ModelServer, talked: str
) -> None:
    server.play("summary", [ScriptedReply(text=SUMMARY, gate=Gate(name="written"))], by="count")
    message = agent.start("Compact the conversation.", talked, compact=True)
    driving = asyncio.create_task(agent.worker.on_work(message))
    await server.wait_for_requests("summary", 1)
    start = StartRun.model_validate_json(agent.start("How many basins?", talked).data)
    steer = SteerRun(
        tenant=agent.tenant,
        conversation_id=agent.conversation,
        message_id=new_id("m"),
        content="How many basins?",
        start=start,
        by="ann",
    )
    await agent.signal(steer)

    server.open_gate("written")

    assert await driving == Done()
    outcomes = await agent.events(RunFinished)
    assert [outcome.status for outcome in outcomes[-2:]] == ["completed", "completed"]
    assert outcomes[-1].content == "Fourteen."
    assert (await agent.events(RunStarted))[-1].message == "How many basins?"
    assert SUMMARY in json.dumps(server.requests("work")[-1].body)

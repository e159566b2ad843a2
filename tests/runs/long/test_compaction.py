"""Compaction: a conversation exceeds the context of its model, and continues."""

from __future__ import annotations

import asyncio
import json

import pytest

from banksman.contracts.events import HistoryCompacted, MessageCompleted, RunFinished
from banksman.contracts.ids import new_id
from banksman.contracts.work import CancelRun, StartRun, SteerRun
from tests.runs.long.conftest import CONTEXT_TOKENS, Agent, Agents
from tests.support.model_server import ModelServer
from tests.support.scripted_models import Gate, HttpError, ScriptedCall, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

TASK = "The task: compare the harbours of Genoa, Trieste and Rijeka."
SUMMARY = "Genoa was looked up; it has 14 basins."


def looking(number: int, *, chars: int = 3_000) -> ScriptedReply:
    """Return a long reply with a call."""
    return ScriptedReply(
        text=f"Step {number}. " + "word " * (chars // 5), tool_calls=(ScriptedCall(name="read_file"),)
    )


def play(server: ModelServer, vendor: str, *replies: ScriptedReply, name: str = "work") -> str:
    return f"{vendor}:{server.play(name, replies, by='count')}"


def sent_requests(server: ModelServer, name: str = "work") -> list[str]:
    """Return the messages of each request to the model."""
    return [json.dumps(request.body, ensure_ascii=False) for request in server.requests(name)]


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_a_run_that_exceeds_its_models_context_continues_from_a_summary(
    agent: Agent, server: ModelServer, vendor: str
) -> None:
    """R79: the model's messages are valid for its vendor before and after."""
    server.play("summary", (ScriptedReply(text=SUMMARY),), by="count", at_end="repeat")
    model = play(server, vendor, *(looking(n) for n in range(14)), ScriptedReply(text="Genoa is largest."))

    outcome = await agent.run(TASK, model)

    requests = sent_requests(server)
    compactions = await agent.events(HistoryCompacted)
    assert (outcome.status, outcome.content) == ("completed", "Genoa is largest.")
    assert outcome.iterations == 15
    assert len(compactions) >= 2
    assert {one.how for one in compactions} == {"summarised"}
    assert all(one.tokens_after < one.tokens_before <= CONTEXT_TOKENS for one in compactions)
    assert max(len(text) for text in requests) < CONTEXT_TOKENS * 4
    assert all('"tools"' in text for text in requests)
    assert SUMMARY not in requests[0] and SUMMARY in requests[-1]
    assert all(TASK in text for text in requests)
    assert "Step 13" in requests[-1] and "Step 0" not in requests[-1]
    assert server.violations == []


async def test_the_log_contains_messages_that_the_model_no_longer_receives(
    agent: Agent, server: ModelServer
) -> None:
    server.play("summary", (ScriptedReply(text=SUMMARY),), by="count", at_end="repeat")
    await agent.run(TASK, play(server, "openai", *(looking(n) for n in range(8)), ScriptedReply(text="done")))

    replies = [message.content for message in await agent.events(MessageCompleted)]
    numbers = [event.seq for event in await agent.history()]

    assert [str(text)[:6] for text in replies] == [f"Step {n}" for n in range(8)] + ["done"]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_summary_covers_all_replaced_messages_and_its_usage_counts(
    agent: Agent, server: ModelServer
) -> None:
    server.play("summary", (ScriptedReply(text=SUMMARY),), by="count", at_end="repeat")
    model = play(server, "openai", *(looking(n) for n in range(7)), ScriptedReply(text="done"))

    outcome = await agent.run(TASK, model, max_tokens_per_run=1_000_000)

    (request,) = server.requests("summary")
    (compaction,) = await agent.events(HistoryCompacted)
    text = json.dumps(request.body)
    assert TASK in text and "Step 0" in text and "Called read_file" in text
    assert "tools" not in request.body
    assert compaction.model == "openai:scripted/summary"
    assert compaction.usage.input_tokens > 500
    spent = sum(message.usage.input_tokens for message in await agent.events(MessageCompleted))
    assert outcome.usage.input_tokens == spent + compaction.usage.input_tokens


async def test_the_next_run_begins_with_the_summary(agent: Agent, server: ModelServer) -> None:
    server.play("summary", (ScriptedReply(text=SUMMARY),), by="count", at_end="repeat")
    await agent.run(TASK, play(server, "openai", *(looking(n) for n in range(7)), ScriptedReply(text="done")))

    await agent.run("And Ancona?", play(server, "openai", ScriptedReply(text="smaller"), name="next"))

    (request,) = sent_requests(server, "next")
    assert SUMMARY in request and "And Ancona?" in request
    assert len(await agent.events(HistoryCompacted)) == 1


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedReply(fault=HttpError(status=400, message="no")),
        ScriptedReply(fault=HttpError(status=503, message="overloaded")),
        ScriptedReply(text="", finish_reason="content_filter"),
    ],
    ids=["refused", "unavailable", "withheld"],
)
async def test_without_a_summary_the_oldest_messages_are_dropped_and_the_run_continues(
    agent: Agent, server: ModelServer, reply: ScriptedReply
) -> None:
    server.play("summary", (reply,), by="count", at_end="repeat")
    model = play(server, "anthropic", *(looking(n) for n in range(10)), ScriptedReply(text="done"))

    outcome = await agent.run(TASK, model)

    compactions = await agent.events(HistoryCompacted)
    requests = sent_requests(server)
    assert outcome.status == "completed"
    assert {one.how for one in compactions} == {"dropped"}
    assert "no longer fit" in requests[-1] and TASK in requests[-1]
    assert "Step 9" in requests[-1] and "Step 0" not in requests[-1]
    assert server.violations == []


async def test_an_earlier_summary_stays_when_the_oldest_messages_are_dropped(
    agent: Agent, server: ModelServer
) -> None:
    replies = (ScriptedReply(text=SUMMARY), ScriptedReply(fault=HttpError(status=400, message="no")))
    server.play("summary", replies, by="count", at_end="repeat")
    model = play(server, "openai", *(looking(n) for n in range(13)), ScriptedReply(text="done"))

    await agent.run(TASK, model)

    assert [one.how for one in await agent.events(HistoryCompacted)][:2] == ["summarised", "dropped"]
    assert SUMMARY in sent_requests(server)[-1]


@pytest.mark.parametrize(
    ("vendor", "message"),
    [
        ("openai", "This model's maximum context length is 4096 tokens. However, you requested 5000."),
        ("anthropic", "prompt is too long: 210000 tokens > 200000 maximum"),
    ],
)
async def test_a_request_that_the_provider_finds_too_long_is_shortened(
    agent: Agent, server: ModelServer, vendor: str, message: str
) -> None:
    """A wrong context size in the deployment's table does not fail the run."""
    server.play("summary", (ScriptedReply(text=SUMMARY),), by="count", at_end="repeat")
    refused = ScriptedReply(fault=HttpError(status=400, message=message, times=1))
    model = play(server, vendor, *(looking(n) for n in range(3)), refused, ScriptedReply(text="done"))

    outcome = await agent.run(TASK, model)

    requests = sent_requests(server)
    assert (outcome.status, outcome.content) == ("completed", "done")
    assert len(await agent.events(HistoryCompacted)) == 1
    assert len(requests[-1]) < 0.7 * len(requests[-2])
    assert SUMMARY in requests[-1]


async def test_a_request_that_cannot_be_shortened_ends_the_run_with_the_providers_error(
    agent: Agent, server: ModelServer
) -> None:
    message = "This model's maximum context length is 100 tokens."
    model = play(server, "openai", ScriptedReply(fault=HttpError(status=400, message=message)))

    outcome = await agent.run(TASK, model)

    assert outcome.status == "failed"
    assert outcome.error is not None and "maximum context length" in outcome.error.message
    assert outcome.error.code == "context_overflow"
    assert await agent.events(HistoryCompacted) == []


async def test_a_request_that_is_refused_after_it_was_shortened_fails_with_the_reason(
    agents: Agents, server: ModelServer
) -> None:
    """A server that always refuses does not cost the whole history."""
    server.play("summary", (ScriptedReply(text=SUMMARY),), by="count", at_end="repeat")
    message = "This model's maximum context length is 100 tokens."
    refused = ScriptedReply(fault=HttpError(status=400, message=message))
    replies = [*(looking(n, chars=8_000) for n in range(40)), refused]
    model = server.play("work", replies, by="count", at_end="repeat")

    async with agents(kept_iterations=50) as agent:
        outcome = await agent.run(TASK, f"openai:{model}", context_tokens=200_000)

    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("failed", "context_overflow")
    assert len(await agent.events(HistoryCompacted)) == 2


async def test_a_run_is_cancelled_while_its_summary_is_written(agent: Agent, server: ModelServer) -> None:
    server.play("summary", (ScriptedReply(text=SUMMARY, gate=Gate(name="summary")),), by="count")
    model = play(server, "openai", *(looking(n) for n in range(7)), ScriptedReply(text="done"))
    message = agent.start(TASK, model)
    run_id = StartRun.model_validate_json(message.data).run_id

    driving = asyncio.create_task(agent.drive(message))
    await server.wait_for_requests("summary")
    cancel = CancelRun(tenant=agent.tenant, conversation_id=agent.conversation, run_id=run_id, by="ann")
    await agent.signal(cancel)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        outcome = await driving

    assert outcome.status == "cancelled"
    assert await agent.events(HistoryCompacted) == []


async def test_a_run_continues_after_its_agent_died_during_a_summary(
    agent: Agent, agents: Agents, server: ModelServer
) -> None:
    """The summary is not in the log, so the next owner compacts as if for the first time."""
    replies = (ScriptedReply(text="lost", gate=Gate(name="never")), ScriptedReply(text=SUMMARY))
    server.play("summary", replies, by="count", at_end="repeat")
    model = play(server, "openai", *(looking(n) for n in range(7)), ScriptedReply(text="done"))
    message = agent.start(TASK, model)

    dying = asyncio.create_task(agent.worker.on_work(message))
    await server.wait_for_requests("summary")
    dying.cancel()
    await asyncio.wait([dying])
    async with agents() as successor:
        outcome = await successor.drive(message)

    (compaction,) = await agent.events(HistoryCompacted)
    assert (outcome.status, compaction.summary) == ("completed", SUMMARY)
    assert len(await agent.events(RunFinished)) == 1


async def test_a_steer_that_a_summary_replaced_does_not_take_effect_again(
    agent: Agent, server: ModelServer
) -> None:
    server.play("summary", (ScriptedReply(text=SUMMARY),), by="count", at_end="repeat")
    gated = ScriptedReply(tool_calls=(ScriptedCall(name="read_file"),), gate=Gate(name="steered"))
    replies = (gated, *(looking(n) for n in range(8)), ScriptedReply(text="done", gate=Gate(name="again")))
    message = agent.start(TASK, play(server, "openai", *replies))
    steer = SteerRun(
        tenant=agent.tenant,
        conversation_id=agent.conversation,
        message_id=new_id("m"),
        content="Mind the tides.",
        start=StartRun.model_validate_json(agent.start("Mind the tides.", "openai:none").data),
        by="ann",
    )

    driving = asyncio.create_task(agent.drive(message))
    await server.wait_for_requests("work")
    await agent.signal(steer)
    server.open_gate("steered")
    await server.wait_for_requests("work", len(replies))
    steers = [one for one in await agent.events(MessageCompleted) if one.role == "user"]
    await agent.signal(steer)
    server.open_gate("again")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await driving

    assert "Mind the tides." not in sent_requests(server)[-1]
    assert [one for one in await agent.events(MessageCompleted) if one.role == "user"] == steers
    assert len(steers) == 1

"""A tenant's limits apply to all its assistants, conversations and agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from typing import Any

import pytest

from banksman import sdk
from banksman.contracts.assistants import Limits, NewAssistant, RunOverrides, ToolSettings
from banksman.contracts.errors import ErrorCode
from banksman.contracts.events import RunFinished
from banksman.contracts.usage import UsageWindow
from banksman.sdk import EventFrame
from tests.scenarios.conftest import PRICED, Play, model_requests, nats_url, operator_seed
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply, ScriptedUsage
from tests.support.system import ScriptedModel, System

WAIT_S = 40.0
"""Seconds that an immediate action may take on a busy machine."""

CALL = ScriptedCall(name="read_file", arguments={"path": "none.txt"})
# The first test of a session starts the whole system, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(180)

As = Callable[[str], Coroutine[Any, Any, sdk.Client]]


@pytest.fixture
async def as_tenant(system: System) -> AsyncGenerator[As]:
    """A service of a tenant with limits; see `conftest.TENANTS`."""
    async with AsyncExitStack() as stack:

        async def connected(tenant: str) -> sdk.Client:
            return await stack.enter_async_context(
                sdk.connect(nats_url(system), tenant, nkey_seed_file=operator_seed(system))
            )

        yield connected


async def outcome_of(client: sdk.Client, model: str, text: str = "go on", **more: Any) -> RunFinished:
    """Return the outcome of a run in a new conversation."""
    conversation = await client.create_conversation(model=model)
    async with asyncio.timeout(WAIT_S):
        return await client.outcome(await client.send(conversation, text, **more))


async def test_the_daily_token_limit_ends_runs_of_every_conversation_and_reports_the_reset(
    as_tenant: As, play: Play, model: ScriptedModel
) -> None:
    """R31: 500 tokens per day. The run that exceeds them ends before its next request, and so do all
    others."""
    client = await as_tenant("thrifty")
    name = play(
        ScriptedReply(tool_calls=(CALL,), usage=ScriptedUsage(input_tokens=450, output_tokens=60)),
        ScriptedReply(text="no more"),
    )

    first = await outcome_of(client, name)
    second = await outcome_of(client, name)

    for outcome in (first, second):
        assert outcome.error is not None
        assert (outcome.status, outcome.error.code) == ("failed", ErrorCode.TENANT_TOKEN_LIMIT)
        assert "510 of 500 tokens" in outcome.content and "It resets at " in outcome.content
    assert {len(body["messages"]) for body in model_requests(model, name)} == {2}


async def test_the_monthly_cost_is_counted_exactly_over_all_runs_and_agents(
    as_tenant: As, model: ScriptedModel
) -> None:
    """Six parallel runs at two agents cost 10 dollars each, where 60 are allowed."""
    client = await as_tenant("poor")
    reply = ScriptedReply(text="ok", usage=ScriptedUsage(input_tokens=5, output_tokens=5))
    name = model.play(PRICED, (reply,), at_end="repeat")

    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(outcome_of(client, name)) for _ in range(6)]
    late = await outcome_of(client, name)

    assert sum(run.result().usage.cost_usd or 0.0 for run in runs) == 60.0
    assert late.error is not None and late.error.code is ErrorCode.TENANT_COST_LIMIT
    assert "60.00 of 60.00 USD" in late.content
    month = await counted(client, "month", requests=6)
    assert (month.requests, month.input_tokens, month.cost_usd, month.max_cost_usd) == (6, 30, 60.0, 60.0)


@pytest.mark.parametrize(
    ("tenant", "code"), [("poor", ErrorCode.TENANT_COST_LIMIT), ("poor-per-run", ErrorCode.COST_LIMIT)]
)
async def test_a_model_without_a_price_is_refused_while_the_only_limit_is_one_of_cost(
    as_tenant: As, play: Play, model: ScriptedModel, tenant: str, code: ErrorCode
) -> None:
    """No request reaches the model: its cost would count as nothing."""
    client = await as_tenant(tenant)
    name = play(ScriptedReply(text="free"))

    outcome = await outcome_of(client, name)

    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("failed", code)
    assert f"The model {name} has no known price" in outcome.content
    assert model_requests(model, name) == []


async def counted(client: sdk.Client, window: str, *, requests: int) -> UsageWindow:
    """Return the tenant's usage of a window when it contains this number of requests."""

    async def found() -> UsageWindow | None:
        report = await client.usage()
        one = next(one for one in report.windows if one.window == window)
        return one if one.requests >= requests else None

    return await eventually(found, WAIT_S, interval_s=0.1)


async def test_no_assistant_or_request_exceeds_the_limits_of_its_tenant(as_tenant: As, play: Play) -> None:
    """R7, R8, R88: the smallest limit of iterations and seconds applies; the log contains it."""
    client = await as_tenant("bounded")
    name = play(ScriptedReply(tool_calls=(CALL,)), at_end="repeat")
    tools = ToolSettings(enabled=True, max_iterations=500)
    greedy = NewAssistant(model=name, tools=tools, limits=Limits(run_timeout_s=5_000))
    assistant = await client.create_assistant(greedy)
    conversation = await client.create_conversation(assistant=assistant.id)

    run = await client.send(conversation, "go", overrides=RunOverrides(max_iterations=400))

    async with asyncio.timeout(WAIT_S), aclosing(client.follow(conversation)) as events:
        found = {event.type: event.data async for event in until_finished(events)}
    assert found["run.started"]["limits"] == {"max_iterations": 2, "run_timeout_s": 60.0}
    assert (found["run.finished"]["status"], found["run.finished"]["iterations"]) == ("max_iterations", 2)
    assert run.conversation_id == conversation


async def test_tenant_limits_apply_to_runs_of_assistants_without_limits(as_tenant: As, play: Play) -> None:
    """R31: two calls per reply and 1,000 tokens per run, set only by the operator."""
    client = await as_tenant("modest")
    cheap = ScriptedUsage(input_tokens=10, output_tokens=1)
    replies = (
        ScriptedReply(tool_calls=(CALL, CALL, CALL), usage=cheap),
        ScriptedReply(text="Two.", usage=cheap),
    )
    calls = await outcome_of(client, play(*replies))
    usage = ScriptedUsage(input_tokens=900, output_tokens=100)
    tokens = await outcome_of(client, play(ScriptedReply(tool_calls=(CALL,), usage=usage), at_end="repeat"))

    kinds = sorted(str(one.result["error_kind"]) for one in calls.tool_calls)
    assert (calls.status, kinds) == ("completed", ["not_executed", "tool_error", "tool_error"])
    assert tokens.error is not None
    assert (tokens.status, tokens.error.code) == ("failed", ErrorCode.TOKEN_LIMIT)


async def until_finished(events: AsyncGenerator[EventFrame]) -> AsyncGenerator[EventFrame]:
    """Collect the events of a run, including the last one."""
    async for event in events:
        yield event
        if event.type == "run.finished":
            return


async def test_a_tenant_without_limits_is_counted_and_not_stopped(nats: sdk.Client, play: Play) -> None:
    before = await nats.usage()
    await outcome_of(
        nats, play(ScriptedReply(text="ok", usage=ScriptedUsage(input_tokens=11, output_tokens=2)))
    )
    requests = before.windows[0].requests + 1
    day = await counted(nats, "day", requests=requests)
    assert (day.max_tokens, day.max_cost_usd) == (None, None)
    assert day.ends_at > datetime.now(UTC)

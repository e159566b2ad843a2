"""Runs that wait for something need no slot."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

from banksman.bus.connection import Bus
from banksman.contracts.approvals import ApprovalRequested, InputRequested
from banksman.contracts.assistants import ApprovalRule, RunSettings
from banksman.contracts.registry import StartWorkflow, ToolPolicy, WorkflowDefinition
from banksman.contracts.workflows import WorkflowLinked
from banksman.sdk.workflows import Workflow, WorkflowContext
from tests.workflows.playing import events_of, outcome, serving, starting, store, until

AwaitedEvent = type[WorkflowLinked] | type[ApprovalRequested] | type[InputRequested]
AWAITED: dict[str, AwaitedEvent] = {
    "run": WorkflowLinked,
    "approval": ApprovalRequested,
    "value": InputRequested,
}
"""The awaited object of a run, and the event after which the run waits."""
WAITING = 20


async def wait_for(context: WorkflowContext, what: Literal["run", "approval", "value", "nothing"]) -> str:
    """Wait for an agent run, a decision, a value, or nothing."""
    match what:
        case "run":
            await context.run("Think about it.", step="run")
        case "approval":
            await context.tool("write_file", {"path": "a", "content": "x"}, step="write")
        case "value":
            await context.input("Which version?", step="value")
        case "nothing":
            pass
    return what


def waiting_for(tenant: str, what: str) -> StartWorkflow:
    return starting(
        tenant,
        {"what": what},
        workflow="wait_for",
        tools=ToolPolicy(rules=(ApprovalRule(action="ask"),)),
        agent=RunSettings(assistant_id="default", model="mock:none"),
    )


async def test_twenty_waiting_runs_leave_the_only_slot_to_the_next_one(link: Bus, tenant: str) -> None:
    """No agent serves this broker, so the awaited agent runs stay open (R21)."""
    form = {"type": "object", "properties": {"what": {"type": "string"}}}
    workflow = Workflow(WorkflowDefinition(name="wait_for", parameters_schema=form), wait_for)
    kinds = [[*AWAITED][number % len(AWAITED)] for number in range(WAITING)]
    starts = [(waiting_for(tenant, kind), AWAITED[kind]) for kind in kinds]

    async def waits(start: StartWorkflow, awaited: AwaitedEvent) -> bool:
        events = await events_of(link, tenant, start.conversation_id)
        return any(isinstance(event.data, awaited) for event in events)

    async with serving(link, workflow, slots=1):
        for start, _ in starts:
            await store(link, start)
        async with asyncio.TaskGroup() as group:
            for start, awaited in starts:
                group.create_task(until(partial(waits, start, awaited)))
        last = waiting_for(tenant, "nothing")
        await store(link, last)

        assert (await outcome(link, last)).content == "nothing"

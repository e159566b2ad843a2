"""Runs a workflow's function in place of a model: its turns are the replies of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from banksman.contracts.errors import CallerMistake, ErrorCode
from banksman.contracts.events import EventBody, MessageCompleted
from banksman.contracts.ids import approval_id_for
from banksman.contracts.tools import ToolDefinition, ToolResult
from banksman.contracts.wire import JsonObject
from banksman.contracts.workflows import AgentRunStep, InputStep, ToolStep, TurnEnd, TurnReply, WorkflowTurn
from banksman.runs.outcome import Ending, finished
from banksman.runs.owner import Build, Ownership, nothing
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runs.state import Conversation
from banksman.runs.steps import RequestModel, deadline_of, next_step
from banksman.sdk.workflows import WorkflowFailed
from banksman.workflows import step_events
from banksman.workflows.agent_runs import AgentRuns

MAX_FAILURE_CHARS = 1_000

FindTool = Callable[[str], ToolDefinition | None]
TakeTurn = Callable[[WorkflowTurn], Awaitable[TurnReply]]


@dataclass
class WorkflowModel:
    """Builds the replies of one run: the steps that its function requests, or the end of the run."""

    name: str
    title: str
    user: str
    parameters: JsonObject
    take_turn: TakeTurn
    find_tool: FindTool
    schemas: SchemaChecker
    agent_runs: AgentRuns
    without_slot: Callable[[], AbstractAsyncContextManager[None]]
    """Returns a context in which the run occupies no slot."""

    async def complete(self, owned: Ownership) -> Build:
        """Take the next turn and return the `Build` of its commit.

        The commit is empty if the run was cancelled, timed out or deleted before the turn ended.
        """
        events = await _unless_ended(owned, self._turn(owned))
        return nothing if events is None else partial(self._while_open, owned, events)

    def unrecorded(self, error: Exception, reply: Build) -> tuple[Ending, Build] | None:
        if not isinstance(error, CallerMistake | ValueError):
            return None
        text = str(error).encode(errors="replace").decode()[:MAX_FAILURE_CHARS]
        return _failure(f"The log cannot store the result of the workflow: {text}"), nothing

    async def _turn(self, owned: Ownership) -> Build:
        state, run = owned.state, owned.run
        turn = WorkflowTurn(
            tenant=state.tenant,
            conversation_id=state.conversation_id,
            run_id=run.run_id,
            user=self.user,
            workflow=self.name,
            parameters=self.parameters,
            results=step_events.recorded_results(state),
            left_s=(deadline_of(run) - owned.ports.clock.now()).total_seconds(),
        )
        try:
            reply = await self.take_turn(turn)
            _check(reply)
        except WorkflowFailed as failure:
            reply = TurnReply(end=TurnEnd(status="failed", content=str(failure)))
        if reply.end is not None:
            return partial(self._end, owned, reply, reply.end)
        outcomes: dict[str, ToolResult] = {}
        if any(isinstance(step, AgentRunStep) for step in reply.steps):
            # Committed before the agent runs end, so that users see the progress meanwhile.
            await owned.commit(partial(_progress, reply))
            # An agent run may wait for its user for days, during which the workflow must occupy no slot.
            async with self.without_slot():
                outcomes = await self._run_agents(owned, reply)
        return partial(_requested, await self._steps(owned, reply, outcomes))

    async def _run_agents(self, owned: Ownership, reply: TurnReply) -> dict[str, ToolResult]:
        runs = [step for step in reply.steps if isinstance(step, AgentRunStep)]
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(self.agent_runs.outcome(owned, step, self.title)) for step in runs]
        return {step.step: end.result() for step, end in zip(runs, ends, strict=True)}

    async def _steps(
        self, owned: Ownership, reply: TurnReply, outcomes: dict[str, ToolResult]
    ) -> step_events.RequestedSteps:
        calls = [step for step in reply.steps if isinstance(step, ToolStep)]
        tools = {step.tool: tool for step in calls if (tool := self.find_tool(step.tool)) is not None}
        problems: dict[str, str] = {}
        for step in calls:
            if (tool := tools.get(step.tool)) is not None:
                problem = await self.schemas.argument_problem(owned.state.tenant, tool, step.arguments)
                if problem is not None:
                    problems[step.step] = str(problem)
        run_id, new_id = owned.run.run_id, owned.ports.clock.new_id
        wanted = (step.step for step in reply.steps if isinstance(step, InputStep))
        return step_events.RequestedSteps(
            reply=reply,
            message_id=new_id("m"),
            approval_id=approval_id_for(run_id),
            input_ids={step: approval_id_for(run_id) for step in wanted},
            tools=tools,
            problems=problems,
            outcomes=outcomes,
            now=owned.ports.clock.now(),
        )

    def _end(
        self, owned: Ownership, reply: TurnReply, end: TurnEnd, state: Conversation
    ) -> tuple[EventBody, ...]:
        events = (*_progress(reply, state), *step_events.output_events(end))
        if end.status == "failed":
            ending = _failure(end.content)
            return (*events, finished(owned.run, "failed", ending.message, ending))
        message = MessageCompleted(
            message_id=owned.ports.clock.new_id("m"),
            role="assistant",
            content=step_events.end_text(end),
            finish_reason="stop",
        )
        return (*events, message)

    def _while_open(self, owned: Ownership, events: Build, state: Conversation) -> tuple[EventBody, ...]:
        step = next_step(state, owned.ports.clock.now())
        return tuple(events(state)) if isinstance(step, RequestModel) else ()


def _requested(steps: step_events.RequestedSteps, state: Conversation) -> tuple[EventBody, ...]:
    return () if state.run is None else (*_progress(steps.reply, state), *steps.events(state, state.run))


def _progress(reply: TurnReply, state: Conversation) -> tuple[EventBody, ...]:
    return () if state.run is None else step_events.progress_events(reply, state.run.progress)


def _check(reply: TurnReply) -> None:
    """Raise `WorkflowFailed` if a tenant's process requests no step and does not end, or repeats a name."""
    names = [step.step for step in reply.steps]
    if reply.end is None and not names:
        raise WorkflowFailed("The workflow's process requested no step and did not end.")
    if len(set(names)) != len(names):
        raise WorkflowFailed("The workflow's process requested a step twice.")


def _failure(message: str) -> Ending:
    return Ending("failed", ErrorCode.WORKFLOW_ERROR, message[:MAX_FAILURE_CHARS], "not_executed")


async def _unless_ended(owned: Ownership, turn: Coroutine[Any, Any, Build]) -> Build | None:
    ports = owned.ports
    working = asyncio.create_task(turn, name=f"turn of {owned.run.run_id}")
    try:
        while True:
            until = deadline_of(owned.run)
            changed = asyncio.create_task(ports.notifications.wait(owned.state, until))
            try:
                await asyncio.wait({working, changed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
                await asyncio.wait({changed})
            if working.done():
                return working.result()
            await owned.refresh()
            if not owned.holds or not isinstance(next_step(owned.state, ports.clock.now()), RequestModel):
                return None
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait({working})

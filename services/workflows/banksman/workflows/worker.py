"""The handler of workflow starts and resumes, which is idempotent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field, TypeAdapter

from banksman.bus.queues.handling import Done, Later, Leave, Outcome, WorkMessage, check_subject, decoded
from banksman.contracts import subjects
from banksman.contracts.assistants import Limits, RunSettings, ToolSettings, WorkflowInvocation
from banksman.contracts.errors import NotFound, Poison
from banksman.contracts.registry import StartWorkflow, WorkflowDefinition
from banksman.contracts.subjects import SERVED
from banksman.contracts.work import ResumeRun, StartRun
from banksman.contracts.workflows import TurnReply, WorkflowLinked, WorkflowTurn
from banksman.runs.bus_ports import OwnerNotifications
from banksman.runs.claim import accept
from banksman.runs.handlers import wake_queue
from banksman.runs.owner import Ownership, append
from banksman.runs.ports import Ports
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation
from banksman.sdk.workflows import WorkflowFailed
from banksman.workflows.agent_runs import AgentRuns
from banksman.workflows.execution import TakeTurn, WorkflowModel
from banksman.workflows.forms import described, with_defaults
from banksman.workflows.registry import CallableTools, WorkflowRegistry
from banksman.workflows.turns import Turns
from banksman.workflows.without_code import take_built_turn

WORK: TypeAdapter[StartWorkflow | ResumeRun] = TypeAdapter(
    Annotated[StartWorkflow | ResumeRun, Field(discriminator="type")]
)
MAX_CALL_ROUNDS = 1000
"""Iterations after which a run ends with status `max_iterations`."""
MAX_SHOWN_CHARS = 4_000
"""Maximum characters of the first message of a run, which shows its parameters."""
RETRY_S = 1.0
"""Seconds until a start that waits for another run of its log is delivered again."""
FIRST_WORK_SEQ = 1 << 48
"""Added to stream sequences of WORKFLOWS. RUNS has its own sequences, and a message of RUNS with an equal
number must not count as the redelivery of a workflow's start."""


@dataclass(frozen=True, slots=True)
class WorkflowWorker:
    ports: Ports
    notifications: OwnerNotifications
    tools: CallableTools
    turns: Turns
    registry: WorkflowRegistry
    schemas: SchemaChecker
    agent_runs: AgentRuns

    async def on_work(self, message: WorkMessage) -> Outcome:
        """Drive a workflow run until it ends or waits for a user. A repeat continues from the log."""
        work = decoded(WORK, message)
        check_subject(message, subjects.workflow_run(SERVED, work.tenant, work.conversation_id))
        state = await self.ports.log.read(work.tenant, work.conversation_id)
        match work:
            case StartWorkflow():
                return await self._on_start(work, state, message)
            case ResumeRun():
                return await self._on_resume(work, state, message)

    async def _on_start(self, start: StartWorkflow, state: Conversation, message: WorkMessage) -> Outcome:
        if not state.knows(start.run_id) and (state.run is not None or state.queue):
            return Later(RETRY_S)
        definition, take_turn = await self._served(start.workflow, start.tenant)
        linked = await self._link(start)
        # The log of a workflow run has no other messages that could come first.
        run, seq = as_run(start, definition), FIRST_WORK_SEQ + message.stream_seq
        owned = await accept(self.ports, run, seq, alone=True, start_next=False)
        if owned is not None:
            owned.workspace = start.in_conversation
        take_turn = _pinned(owned, take_turn) if linked else _conversation_deleted
        return await self._drive(message, start.run_id, state, owned, take_turn, definition)

    async def _on_resume(self, resume: ResumeRun, state: Conversation, message: WorkMessage) -> Outcome:
        owned = await accept(self.ports, resume, FIRST_WORK_SEQ + message.stream_seq, start_next=False)
        workflow = None if owned is None else owned.run.settings.workflow
        if workflow is None:
            definition, take_turn = WorkflowDefinition(name="unknown"), _withdrawn
        else:
            definition, take_turn = await self._served(workflow.name, resume.tenant)
            take_turn = _pinned(owned, take_turn)
        return await self._drive(message, resume.run_id, state, owned, take_turn, definition)

    async def _served(self, name: str, tenant: str) -> tuple[WorkflowDefinition, TakeTurn]:
        """Return a workflow's definition and the function for its turns, which fails for a withdrawn one."""
        try:
            definition = await self.registry.get(name, tenant)
        except NotFound:
            return WorkflowDefinition(name=name), _withdrawn
        return definition, partial(self.turns.take, definition)

    async def _drive(
        self,
        message: WorkMessage,
        run_id: str,
        state: Conversation,
        owned: Ownership | None,
        take_turn: TakeTurn,
        definition: WorkflowDefinition,
    ) -> Outcome:
        claims = state.claims_in_row if owned is None else owned.state.claims_in_row
        if owned is not None:
            workflow = owned.run.settings.workflow or WorkflowInvocation(name=definition.name)
            model = WorkflowModel(
                name=workflow.name,
                title=definition.title or definition.name,
                user=workflow.user,
                parameters=with_defaults(definition.parameters_schema, workflow.parameters),
                take_turn=take_turn,
                find_tool=partial(self.tools.find, state.tenant),
                schemas=self.schemas,
                agent_runs=self.agent_runs,
                without_slot=message.without_slot,
            )
            if not await self.notifications.drive(owned, model):
                return Leave()
        await wake_queue(self.ports, state)
        if claims >= CRASH_LOOP_CLAIMS:
            raise Poison(message.subject, f"crash_loop: run {run_id} was given up")
        return Done()

    async def _link(self, start: StartWorkflow) -> bool:
        """Record a link in the conversation that started the workflow; return False if it is deleted."""
        if start.in_conversation is None:
            return True
        link = WorkflowLinked(
            workflow=start.workflow,
            workflow_run_id=start.run_id,
            workflow_conversation_id=start.conversation_id,
        )
        while True:
            state = await self.ports.log.read(start.tenant, start.in_conversation)
            if state.deleted or start.run_id in state.linked:
                return not state.deleted
            await append(self.ports, state, None, (link,))


def _tools(start: StartWorkflow, definition: WorkflowDefinition) -> ToolSettings:
    """Return the tools of a run: any tool, or those of the assistant for a workflow without code."""
    own = start.tools.tools or ToolSettings(enabled=True)
    changes: dict[str, object] = {"max_iterations": MAX_CALL_ROUNDS, "on_reject": start.tools.on_reject}
    if definition.built is None:
        changes |= {"enabled": True, "allowed_tools": None, "mcp_servers": None}
    return own.model_copy(update=changes)


def as_run(start: StartWorkflow, definition: WorkflowDefinition) -> StartRun:
    lines = (definition.title or definition.name, *described(definition.parameters_schema, start.parameters))
    invocation = WorkflowInvocation(
        name=start.workflow,
        parameters=start.parameters,
        user=start.user,
        agent=start.agent,
        built=definition.built,
    )
    return StartRun(
        tenant=start.tenant,
        conversation_id=start.conversation_id,
        run_id=start.run_id,
        message_id=start.message_id,
        content="\n".join(lines)[:MAX_SHOWN_CHARS],
        settings=RunSettings(
            assistant_id="workflow",
            model=f"workflow:{definition.name}",
            tools=_tools(start, definition),
            limits=Limits(run_timeout_s=definition.timeout_s),
            approval_policy=start.tools.rules,
            approvals=start.tools.approvals,
            workspace=start.in_conversation,
            workflow=invocation,
            traceparent=start.traceparent,
        ),
        user=start.user,
        provenance=start.provenance,
    )


def _pinned(owned: Ownership | None, take_turn: TakeTurn) -> TakeTurn:
    """A workflow without code executes the steps that the run began with, even if they were changed since."""
    workflow = None if owned is None else owned.run.settings.workflow
    if workflow is None or workflow.built is None:
        return take_turn
    return partial(take_built_turn, workflow.built)


async def _conversation_deleted(_turn: WorkflowTurn) -> TurnReply:
    raise WorkflowFailed("The conversation in which the workflow was started is deleted.")


async def _withdrawn(_turn: WorkflowTurn) -> TurnReply:
    raise WorkflowFailed("The workflow is no longer registered.")

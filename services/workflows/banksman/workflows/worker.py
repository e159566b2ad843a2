"""The handler of workflow starts, which is idempotent."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from pydantic import TypeAdapter

from banksman.bus.decoding import check_subject, decoded
from banksman.bus.outcomes import Done, Later, Leave, Outcome, WorkMessage
from banksman.contracts import subjects
from banksman.contracts.assistants import Limits, RunSettings, ToolSettings
from banksman.contracts.errors import Fenced, Poison, Refused
from banksman.contracts.events import WorkflowLinked
from banksman.contracts.registry import (
    StartWorkflow,
    WorkflowDefinition,
)
from banksman.contracts.work import StartRun
from banksman.runs.claim import accept
from banksman.runs.handlers import wake_queue
from banksman.runs.loop import drive
from banksman.runs.notifications import OwnerNotifications
from banksman.runs.owner import Ownership, append
from banksman.runs.ports import Ports
from banksman.runs.schemas import SchemaChecker
from banksman.runs.state import CRASH_LOOP_CLAIMS
from banksman.workflows.execution import WorkflowExecution
from banksman.workflows.forms import described
from banksman.workflows.registry import Registry
from banksman.workflows.tools import Tools
from banksman.workflows.workflow import Workflow, WorkflowFailed

logger = logging.getLogger(__name__)

START: TypeAdapter[StartWorkflow] = TypeAdapter(StartWorkflow)
MAX_CALL_ROUNDS = 1000
"""Iterations after which a run ends with status `max_iterations`."""
MAX_SHOWN_CHARS = 4_000
"""Characters of the first message of a run, which shows its parameters."""
RETRY_S = 1.0
"""Seconds until a start that waits for another run of its log is delivered again."""
FIRST_WORK_SEQ = 1 << 48
"""Added to stream sequences of WORKFLOWS. RUNS has its own sequences, and a message of RUNS with an equal
number must not count as the redelivery of a workflow's start."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Drives the workflow runs of one process."""

    ports: Ports
    notifications: OwnerNotifications
    tools: Tools
    workflows: dict[str, Workflow]
    registry: Registry
    schemas: SchemaChecker

    async def on_start(self, message: WorkMessage) -> Outcome:
        """Drive a workflow run to its end. A repeated message continues from the log.

        Raises:
            Poison: The message cannot be decoded, has another subject, or its run ended as a crash loop.
            Fenced: Another process has claimed the run.
        """
        start = _decode(message)
        workflow = self.workflows.get(start.workflow)
        if workflow is None:
            raise Poison(message.subject, f"workflow {start.workflow!r} is not served here")
        state = await self.ports.log.read(start.tenant, start.conversation_id)
        if not state.knows(start.run_id) and (state.run is not None or state.queue):
            return Later(RETRY_S)
        if not await self._link(start):
            workflow = Workflow(workflow.definition, _without_conversation)
        work_seq = FIRST_WORK_SEQ + message.stream_seq
        owned = await accept(self.ports, as_run(start, workflow.definition), work_seq, start_next=False)
        claims = state.claims_in_row if owned is None else owned.state.claims_in_row
        if owned is not None:
            owned.workspace = start.in_conversation
            if not await self._drive(owned, workflow, start):
                return Leave()
        await wake_queue(self.ports, state)
        if claims >= CRASH_LOOP_CLAIMS:
            raise Poison(message.subject, f"crash_loop: run {start.run_id} was given up")
        return Done()

    async def _drive(self, owned: Ownership, workflow: Workflow, start: StartWorkflow) -> bool:
        """Drive a claimed run; return False if an unforeseen error left it open."""
        execution = WorkflowExecution(owned, partial(self.tools.find, start.tenant), self.schemas)
        try:
            async with (
                self.notifications.following(owned.state),
                execution.running(workflow, start.parameters),
            ):
                await drive(owned, execution)
        except (Fenced, Refused):
            raise
        except Exception:
            logger.exception("%s: driving its run failed", start.conversation_id)
            return False
        return True

    async def _link(self, start: StartWorkflow) -> bool:
        """Record one link in the conversation where it was started; return False if that is deleted."""
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


def as_run(start: StartWorkflow, definition: WorkflowDefinition) -> StartRun:
    """Return the start of a workflow as the start of a run."""
    lines = (definition.title or definition.name, *described(definition.parameters_schema, start.parameters))
    return StartRun(
        tenant=start.tenant,
        conversation_id=start.conversation_id,
        run_id=start.run_id,
        message_id=start.message_id,
        content="\n".join(lines)[:MAX_SHOWN_CHARS],
        settings=RunSettings(
            assistant_id="workflow",
            model=f"workflow:{definition.name}",
            tools=ToolSettings(enabled=True, max_iterations=MAX_CALL_ROUNDS),
            limits=Limits(run_timeout_s=definition.timeout_s),
        ),
        user=start.user,
    )


async def _without_conversation(_context: object, **_parameters: object) -> str:
    """Replace the function of a workflow whose conversation was deleted before the start."""
    raise WorkflowFailed("The conversation in which the workflow was started is deleted.")


def _decode(message: WorkMessage) -> StartWorkflow:
    start = decoded(START, message)
    check_subject(message, subjects.workflow_run(start.workflow, start.tenant, start.conversation_id))
    return start

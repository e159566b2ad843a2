"""What the service does about each message it is given. Every handler is safe to run twice."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from pydantic import TypeAdapter

from banksman.bus.decoding import check_subject, decoded
from banksman.bus.messages import Message
from banksman.bus.outcomes import Done, Later, Leave, Outcome, WorkMessage
from banksman.contracts import subjects
from banksman.contracts.assistants import Limits, RunSettings, ToolSettings
from banksman.contracts.errors import Fenced, Poison, Refused
from banksman.contracts.events import WorkflowLinked
from banksman.contracts.registry import (
    CheckWorkflow,
    StartWorkflow,
    WorkflowCategories,
    WorkflowChecked,
    WorkflowDefinition,
    WorkflowList,
    WorkflowName,
)
from banksman.contracts.wire import parse
from banksman.contracts.work import StartRun
from banksman.runs.handlers import wake_queue
from banksman.runs.owner import Ownership, accept, append
from banksman.runs.ports import Ports
from banksman.runs.state import CRASH_LOOP_CLAIMS
from banksman.runs.stores import Watch
from banksman.workflows.forms import filled
from banksman.workflows.loop import drive
from banksman.workflows.performance import Performance
from banksman.workflows.registry import Registry, by_category
from banksman.workflows.tools import Tools
from banksman.workflows.workflow import Workflow, WorkflowFailed

logger = logging.getLogger(__name__)

START: TypeAdapter[StartWorkflow] = TypeAdapter(StartWorkflow)
MAX_CALL_ROUNDS = 1000
"""Rounds of calls after which a run ends with status `max_iterations`."""
MAX_SHOWN_CHARS = 4_000
"""Of the parameters in the message that opens a run's log."""
LOOK_AGAIN_S = 1.0
"""Seconds until a start looks again whether another run of its log has ended."""
FIRST_WORK_SEQ = 1 << 48
"""Work sequences count on from here: stream RUNS numbers its messages too, and a start from there must never
pass for the redelivery of ours."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The handlers of one process."""

    ports: Ports
    watch: Watch
    tools: Tools
    workflows: dict[str, Workflow]
    registry: Registry

    async def on_start(self, message: WorkMessage) -> Outcome:
        """Run a workflow to its end. Idempotent by run id: the log says what was done.

        Raises:
            Poison: the message cannot be read, came on another's subject, or its run was given up.
            Fenced: another process took the run over.
        """
        start = _decode(message)
        workflow = self.workflows.get(start.workflow)
        if workflow is None:
            raise Poison(message.subject, f"workflow {start.workflow!r} is not served here")
        state = await self.ports.log.read(start.tenant, start.conversation_id)
        if not state.knows(start.run_id) and (state.run is not None or state.queue):
            return Later(LOOK_AGAIN_S)
        there = await self._link(start)
        work_seq = FIRST_WORK_SEQ + message.stream_seq
        owned = await accept(self.ports, as_run(start, workflow.definition), work_seq, start_next=False)
        claims = state.claims_in_row if owned is None else owned.state.claims_in_row
        if owned is not None:
            owned.workspace = start.in_conversation
            if not await self._performed(
                owned, workflow if there else _without_conversation(workflow), start
            ):
                return Leave()
        await wake_queue(self.ports, state)
        if claims >= CRASH_LOOP_CLAIMS:
            raise Poison(message.subject, f"crash_loop: run {start.run_id} was given up")
        return Done()

    async def on_list(self, _message: Message) -> bytes:
        """Answer with every workflow."""
        return _encoded(WorkflowList(workflows=await self.registry.all()))

    async def on_categories(self, _message: Message) -> bytes:
        """Answer with every workflow in its category."""
        return _encoded(WorkflowCategories(categories=by_category(await self.registry.all())))

    async def on_get(self, message: Message) -> bytes:
        """Answer with one workflow.

        Raises:
            BadInput, NotFound: become the answer.
        """
        return _encoded(await self.registry.get(parse(WorkflowName, message.data).name))

    async def on_check(self, message: Message) -> bytes:
        """Answer with the parameters that a start would run with.

        Raises:
            BadInput, NotFound: become the answer.
        """
        asked = parse(CheckWorkflow, message.data)
        definition = await self.registry.get(asked.workflow)
        parameters = filled(definition.parameters_schema, asked.parameters)
        return _encoded(WorkflowChecked(workflow=definition, parameters=parameters))

    async def _performed(self, owned: Ownership, workflow: Workflow, start: StartWorkflow) -> bool:
        """Drive a run; False when that failed: then its message must come again."""
        performance = Performance(owned, lambda name: self.tools.find(start.tenant, name))
        try:
            async with self.watch.driving(owned.state), performance.of(workflow, start.parameters):
                await drive(owned, performance)
        except (Fenced, Refused):
            raise
        except Exception:
            logger.exception("%s: driving its run failed", start.conversation_id)
            return False
        return True

    async def _link(self, start: StartWorkflow) -> bool:
        """Leave a link in the conversation it was started in, once; False when that one was deleted."""
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
    """A workflow's start as that of a run, for the protocol of runs."""
    shown = json.dumps(start.parameters, ensure_ascii=False)[:MAX_SHOWN_CHARS]
    return StartRun(
        tenant=start.tenant,
        conversation_id=start.conversation_id,
        run_id=start.run_id,
        message_id=start.message_id,
        content=f"{definition.title or definition.name}: {shown}",
        settings=RunSettings(
            assistant_id="workflow",
            model=f"workflow:{definition.name}",
            tools=ToolSettings(enabled=True, max_iterations=MAX_CALL_ROUNDS),
            limits=Limits(run_timeout_s=definition.timeout_s),
        ),
        user=start.user,
    )


def _without_conversation(workflow: Workflow) -> Workflow:
    async def refuse(_context: object, **_parameters: object) -> str:
        raise WorkflowFailed("The conversation it was started in was deleted.")

    return Workflow(workflow.definition, refuse)


def _decode(message: WorkMessage) -> StartWorkflow:
    start = decoded(START, message)
    check_subject(message, subjects.workflow_run(start.workflow, start.tenant, start.conversation_id))
    return start


def _encoded(model: WorkflowList | WorkflowCategories | WorkflowDefinition | WorkflowChecked) -> bytes:
    return model.model_dump_json().encode()

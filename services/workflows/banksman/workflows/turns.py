"""Takes the turns of workflows, in this process or in one of their server; stores their progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import RemoteError, checked_reply
from banksman.contracts import subjects, workflows
from banksman.contracts.errors import NotFound, Unavailable
from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.workflows import WorkflowProgress
from banksman.runs.owner import append
from banksman.runs.ports import Ports
from banksman.runs.state import Run
from banksman.runtime.backoff import Backoff, overlapping, retry
from banksman.sdk.servers.turns import take_turn
from banksman.sdk.workflows import Workflow, WorkflowFailed
from banksman.workflows.registry import WorkflowRegistry
from banksman.workflows.step_events import progress_event

RETRY_S = (0.5, 5.0)
"""Seconds of the first and of the longest pause while no process of the server responds."""
AGAIN_S = 3.0
"""Seconds after which a turn is also sent to another process: the first one may have been killed. The first
reply counts, because turns have no effects."""


@dataclass(frozen=True, slots=True)
class Turns:
    bus: Bus
    builtin: Mapping[str, Workflow]

    async def take(self, definition: WorkflowDefinition, turn: workflows.WorkflowTurn) -> workflows.TurnReply:
        """Return the reply to a turn. Wait until a process takes it; the run's time limit bounds the wait."""
        workflow = self.builtin.get(definition.name)
        if workflow is not None and workflow.definition.server == definition.server:
            return await take_turn(workflow, turn)
        return await self._request(definition, turn)

    async def _request(
        self, definition: WorkflowDefinition, turn: workflows.WorkflowTurn
    ) -> workflows.TurnReply:
        subject = subjects.workflow_turn(definition.server, turn.tenant, turn.conversation_id)
        data = turn.model_dump_json(by_alias=True).encode()
        if len(data) > workflows.MAX_TURN_BYTES:
            most = workflows.MAX_TURN_BYTES
            raise WorkflowFailed(f"The recorded results have {len(data)} bytes; a workflow may have {most}.")

        async def attempt() -> bytes:
            await self.bus.wait_connected()
            send = partial(self.bus.request, subject, data, workflows.TURN_S)
            reply = await overlapping(send, after_s=AGAIN_S, most=2, on_repeat=lambda: None)
            return checked_reply(reply)

        def again(error: Exception) -> bool:
            return error.retryable if isinstance(error, RemoteError) else self.bus.may_recover(error)

        try:
            reply = await retry(
                attempt,
                again=again,
                backoff=Backoff(*RETRY_S),
                budget_s=max(turn.left_s, 0.0) + workflows.TURN_S,
                failure=f"no process of {definition.server!r} took the next turn of {definition.name!r}",
            )
        except asyncio.CancelledError:
            await self._cancel(definition, turn)
            raise
        except RemoteError as error:
            raise WorkflowFailed(f"{definition.name}: its process refused the turn: {error}") from error
        try:
            return workflows.TurnReply.model_validate_json(reply)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise WorkflowFailed(
                f"{definition.name}: the reply of its process cannot be read: {place}: {first['msg']}"
            ) from error

    async def _cancel(self, definition: WorkflowDefinition, turn: workflows.WorkflowTurn) -> None:
        """Cancel the function of a turn whose reply is no longer needed; best effort."""
        subject = subjects.workflow_cancel(definition.server, turn.tenant, turn.conversation_id)
        with contextlib.suppress(Unavailable):
            await self.bus.publish(
                subject, workflows.CancelTurn(run_id=turn.run_id).model_dump_json().encode()
            )


INTERVAL = timedelta(seconds=workflows.PROGRESS_INTERVAL_S)


@dataclass(frozen=True, slots=True)
class ProgressReports:
    """Stores progress in the logs of runs, for which a process needs no claim of the run."""

    ports: Ports
    registry: WorkflowRegistry

    async def store(self, report: workflows.ReportProgress) -> bool:
        """Store a report; return False within `INTERVAL` of the last one, or if it reports nothing new."""
        event = progress_event(report.progress)
        while True:
            state = await self.ports.log.read(report.tenant, report.conversation_id)
            run = state.run
            if run is None or not await self._serves(report, run):
                raise NotFound("run", report.run_id)
            if run.progress_at is not None and self.ports.clock.now() - run.progress_at < INTERVAL:
                return False
            if run.progress is not None and _reached(run.progress, report.progress):
                return False
            if await append(self.ports, state, run.run_id, (event,)) is not None:
                return True

    async def _serves(self, report: workflows.ReportProgress, run: Run) -> bool:
        if run.run_id != report.run_id or run.cancel is not None or run.settings.workflow is None:
            return False
        definition = await self.registry.get(run.settings.workflow.name, report.tenant)
        return definition.server == report.server


def _reached(stored: WorkflowProgress, progress: workflows.Progress) -> bool:
    """Return whether the stored progress includes this report: a repeated turn reports its progress again."""
    return stored.total == progress.total and stored.step >= progress.step

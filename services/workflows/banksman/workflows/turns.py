"""Takes the turns of workflows, in this process or in one of their server; stores their progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, RemoteError, checked_reply
from banksman.contracts import subjects, workflows
from banksman.contracts.errors import NotFound, Unavailable
from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.workflows import WorkflowProgress
from banksman.runs.owner import append
from banksman.runs.ports import Ports
from banksman.runs.state import Run
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.servers.turns import take_turn
from banksman.sdk.workflows import Workflow, WorkflowFailed
from banksman.workflows.registry import WorkflowRegistry
from banksman.workflows.step_events import progress_event

RETRY_S = (0.5, 5.0)
"""Seconds of the first and of the longest pause while no process of the server responds."""
CHECK_S = 1.0
"""Seconds of a turn after which its process is looked for, and between two looks."""
LOST_CHECKS = 2
"""Looks in a row that find no process with the turn before it is sent again: its process may reconnect."""


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
            return checked_reply(await self._reply(definition, turn, subject, data))

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

    async def _reply(
        self, definition: WorkflowDefinition, turn: workflows.WorkflowTurn, subject: str, data: bytes
    ) -> bytes:
        """Return the first reply to a turn, which is sent again if no process seems to have it."""
        sent = [asyncio.create_task(self.bus.request(subject, data, workflows.TURN_S))]
        lost = 0
        try:
            while True:
                done, _ = await asyncio.wait(sent, timeout=CHECK_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return done.pop().result()
                lost = lost + 1 if len(sent) == 1 and await self._is_lost(definition, turn) else 0
                if lost == LOST_CHECKS:
                    sent.append(asyncio.create_task(self.bus.request(subject, data, workflows.TURN_S)))
        finally:
            for request in sent:
                request.cancel()

    async def _is_lost(self, definition: WorkflowDefinition, turn: workflows.WorkflowTurn) -> bool:
        """Return whether no process has the turn; False if that is not known."""
        subject = subjects.workflow_cancel(definition.server, turn.tenant, workflows.ANY_TURN)
        find = workflows.FindTurn(conversation_id=turn.conversation_id)
        try:
            reply = await self.bus.request(subject, find.model_dump_json().encode(), CHECK_S)
            return not workflows.FoundTurn.model_validate_json(reply).held
        except NoResponders:
            return True
        except (Unavailable, ValidationError):
            return False

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

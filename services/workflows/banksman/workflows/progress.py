"""Progress that a function reports in the middle of a turn."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from banksman.contracts.errors import NotFound
from banksman.contracts.events import WorkflowProgress
from banksman.contracts.workflows import PROGRESS_INTERVAL_S, Progress, ReportProgress
from banksman.runs.owner import append
from banksman.runs.ports import Ports
from banksman.runs.state import Run
from banksman.workflows.registry import Registry
from banksman.workflows.step_events import progress_event

INTERVAL = timedelta(seconds=PROGRESS_INTERVAL_S)


@dataclass(frozen=True, slots=True)
class ProgressReports:
    """Stores progress in the logs of runs. A process needs no claim of the run for that."""

    ports: Ports
    registry: Registry

    async def store(self, report: ReportProgress) -> bool:
        """Store a report; return False within `INTERVAL` of the last one, or if it reports nothing new.

        Raises:
            NotFound: The run is not open, is cancelled, or belongs to a workflow of another server.
        """
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

    async def _serves(self, report: ReportProgress, run: Run) -> bool:
        if run.run_id != report.run_id or run.cancel is not None or run.settings.workflow is None:
            return False
        definition = await self.registry.get(run.settings.workflow.name, report.tenant)
        return definition.server == report.server


def _reached(stored: WorkflowProgress, progress: Progress) -> bool:
    """Return whether the stored progress includes this report: a repeated turn reports its progress again."""
    return stored.total == progress.total and stored.step >= progress.step

"""One turn of a workflow: its function runs from the beginning up to its next steps, or to its end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from banksman.contracts import workflows
from banksman.contracts.errors import BadInput
from banksman.contracts.tools import call_digest
from banksman.sdk.workflows import Workflow, WorkflowContext, WorkflowFailed

logger = logging.getLogger(__name__)

CLEANUP_S = 5.0
"""Seconds within which a function must end after its turn."""
REPORT_AFTER_S = 0.2
"""Seconds after which progress is reported before the reply; most turns end sooner."""
SETTLE_ROUNDS = 5
"""Rounds of the event loop in which the siblings of a task group request their first steps."""


Report = Callable[[workflows.Progress], Awaitable[None]]


async def take_turn(
    workflow: Workflow, turn: workflows.WorkflowTurn, report: Report | None = None
) -> workflows.TurnReply:
    """Run a function with its recorded results, and return its next steps or its end.

    `report` stores progress while the function computes; None stores progress only with the reply.
    """
    taken = TakenTurn(turn)
    reporting = None if report is None else asyncio.create_task(_report(taken, report))
    function = asyncio.create_task(_end_of(workflow, taken), name=turn.run_id)
    blocked = asyncio.create_task(taken.blocked.wait())
    try:
        await asyncio.wait({function, blocked}, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(0)
        # The function ended without waiting for these steps.
        end = function.result() if function.done() else None
        steps = () if end is not None else tuple(taken.steps)
        return workflows.TurnReply(progress=tuple(taken.reports), steps=steps, end=end)
    finally:
        taken.ended = True
        blocked.cancel()
        function.cancel()
        if reporting is not None:
            reporting.cancel()
        _, unfinished = await asyncio.wait({function}, timeout=CLEANUP_S)
        if unfinished:
            logger.error("%s does not end when it is cancelled", workflow.name)


@dataclass
class TakenTurn:
    turn: workflows.WorkflowTurn
    steps: list[workflows.Step] = field(default_factory=list[workflows.Step])
    """Steps without a recorded result."""
    reports: deque[workflows.Progress] = field(default_factory=lambda: deque(maxlen=workflows.MAX_REPORTS))
    """The newest progress reports; a function may report each of many items."""
    outputs: list[workflows.Output] = field(default_factory=list[workflows.Output])
    blocked: asyncio.Event = field(default_factory=asyncio.Event)
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    """True once the reply is complete or the turn was cancelled; then no more steps are accepted."""
    _used: set[str] = field(default_factory=set[str])

    def report(self, progress: workflows.Progress) -> None:
        # Until all recorded steps have been repeated, the log already has the progress.
        if self.turn.results.keys() <= self._used:
            self.reports.append(progress)
            self.reported.set()

    async def result_of(
        self, step: workflows.ToolStep | workflows.InputStep | workflows.AgentRunStep
    ) -> workflows.StepResult:
        """Return the recorded result of a step; without one, wait until the turn ends."""
        if self.ended:
            raise asyncio.CancelledError
        if step.step in self._used:
            raise ValueError(f"step {step.step!r} is used twice")
        self._used.add(step.step)
        known = self.turn.results.get(step.step)
        if known is None:
            self.steps.append(step)
            self.blocked.set()
            return await asyncio.get_running_loop().create_future()
        if known.digest != call_digest(*workflows.call_of(step)):
            raise ValueError(f"step {step.step!r} differs from the step of this name in the log")
        return known


async def _report(taken: TakenTurn, report: Report) -> None:
    while True:
        await taken.reported.wait()
        await asyncio.sleep(REPORT_AFTER_S)
        taken.reported.clear()
        await report(taken.reports[-1])
        await asyncio.sleep(workflows.PROGRESS_INTERVAL_S)


async def _end_of(workflow: Workflow, taken: TakenTurn) -> workflows.TurnEnd:
    try:
        # A function may return any type, whatever its annotation.
        returned: Any = await workflow(WorkflowContext(taken), taken.turn.parameters)
    except BadInput as error:
        return _failed(taken, f"The parameters do not fit. {error}")
    except Exception as error:
        if (failure := _failure_in(error)) is not None:
            return _failed(taken, str(failure))
        # Only the type: the message of an unexpected error may contain secrets, and users read the log.
        logger.exception("workflow %s failed", workflow.name)
        return _failed(taken, f"{workflow.name} failed: {type(error).__name__}")
    if not isinstance(returned, str):
        kind = type(returned).__name__
        return _failed(taken, f"The workflow returned a value of type {kind}; text was expected.")
    try:
        returned.encode()
        return workflows.TurnEnd(content=returned, outputs=tuple(taken.outputs))
    except (ValidationError, UnicodeEncodeError) as error:
        return _failed(taken, f"The output of the workflow cannot be stored: {type(error).__name__}")


def _failure_in(error: BaseException) -> WorkflowFailed | None:
    """Return the `WorkflowFailed` in an error or an exception group; None for an unexpected error."""
    if isinstance(error, WorkflowFailed):
        return error
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next((found for one in inner if (found := _failure_in(one)) is not None), None)
    return None


def _failed(taken: TakenTurn, reason: str) -> workflows.TurnEnd:
    text = reason.encode(errors="replace").decode()
    return workflows.TurnEnd(status="failed", content=text, outputs=tuple(taken.outputs))

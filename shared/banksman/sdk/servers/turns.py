"""One turn of a workflow: its function runs from the beginning up to its next steps, or to its end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from banksman.contracts.errors import BadInput
from banksman.contracts.tools import call_digest
from banksman.contracts.wire import JsonObject, JsonValue, strict_json
from banksman.contracts.workflows import (
    DAY_S,
    MAX_REPORTS,
    PROGRESS_INTERVAL_S,
    AgentRunStep,
    FileOutput,
    InputStep,
    Output,
    Progress,
    Step,
    StepResult,
    TableOutput,
    TextOutput,
    ToolStep,
    TurnEnd,
    TurnReply,
    WorkflowTurn,
    call_of,
)
from banksman.sdk.workflows import Workflow, WorkflowContext, WorkflowFailed

logger = logging.getLogger(__name__)

CLEANUP_S = 5.0
"""Seconds within which a function must end after its turn."""
REPORT_AFTER_S = 0.2
"""Seconds after which progress is reported before the reply; most turns end sooner."""
SETTLE_ROUNDS = 5
"""Rounds of the event loop in which the siblings of a task group request their first steps."""


Report = Callable[[Progress], Awaitable[None]]


async def take_turn(workflow: Workflow, turn: WorkflowTurn, report: Report | None = None) -> TurnReply:
    """Run a function with its recorded results, and return its next steps or its end.

    `report` stores progress while the function computes; None stores progress only with the reply.
    """
    context = TurnContext(turn)
    reporting = None if report is None else asyncio.create_task(_report(context, report))
    function = asyncio.create_task(_end_of(workflow, context), name=turn.run_id)
    blocked = asyncio.create_task(context.blocked.wait())
    try:
        await asyncio.wait({function, blocked}, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(0)
        # The function ended without waiting for these steps.
        end = function.result() if function.done() else None
        steps = () if end is not None else tuple(context.steps)
        return TurnReply(progress=tuple(context.reports), steps=steps, end=end)
    finally:
        context.ended = True
        blocked.cancel()
        function.cancel()
        if reporting is not None:
            reporting.cancel()
        _, unfinished = await asyncio.wait({function}, timeout=CLEANUP_S)
        if unfinished:
            logger.error("%s does not end when it is cancelled", workflow.name)


@dataclass
class TurnContext:
    turn: WorkflowTurn
    steps: list[Step] = field(default_factory=list[Step])
    """Steps without a recorded result."""
    reports: deque[Progress] = field(default_factory=lambda: deque(maxlen=MAX_REPORTS))
    """The newest progress reports; a function may report each of many items."""
    outputs: list[Output] = field(default_factory=list[Output])
    blocked: asyncio.Event = field(default_factory=asyncio.Event)
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    """True once the reply is complete or the turn was cancelled; then no more steps are accepted."""
    _used: set[str] = field(default_factory=set[str])

    @property
    def tenant(self) -> str:
        return self.turn.tenant

    @property
    def run_id(self) -> str:
        return self.turn.run_id

    @property
    def user(self) -> str:
        return self.turn.user

    async def tool(self, name: str, arguments: JsonObject, *, step: str) -> StepResult:
        strict_json(json.dumps(arguments), what="arguments")
        return await self._step(ToolStep(step=step, tool=name, arguments=arguments))

    async def input(
        self, message: str, schema: JsonObject | None = None, *, step: str, expires_s: float = 7.0 * DAY_S
    ) -> JsonValue:
        form: JsonObject = {"type": "string"} if schema is None else schema
        result = await self._step(InputStep(step=step, message=message, schema=form, expires_s=expires_s))
        if result.is_error:
            raise WorkflowFailed(f"{message}: {result.content.get('error')}")
        return result.content.get("value")

    async def run(
        self,
        message: str,
        *,
        step: str,
        system_prompt: str | None = None,
        tools: Sequence[str] | None = None,
        max_iterations: int | None = None,
        with_conversation: bool = False,
    ) -> StepResult:
        return await self._step(
            AgentRunStep(
                step=step,
                message=message,
                system_prompt=system_prompt,
                tools=None if tools is None else tuple(tools),
                max_iterations=max_iterations,
                with_conversation=with_conversation,
            )
        )

    def progress(self, step: int, total: int, message: str = "") -> None:
        # Until all recorded steps have been repeated, the log already has the progress.
        if self.turn.results.keys() <= self._used:
            self.reports.append(Progress(step=step, total=total, message=message))
            self.reported.set()

    def text(self, markdown: str) -> None:
        self.outputs.append(TextOutput(text=markdown))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[JsonValue]], *, title: str = "") -> None:
        cells = tuple(tuple(row) for row in rows)
        self.outputs.append(TableOutput(title=title, columns=tuple(columns), rows=cells))

    def file(self, path: str, *, title: str = "") -> None:
        self.outputs.append(FileOutput(path=path, title=title))

    async def _step(self, step: ToolStep | InputStep | AgentRunStep) -> StepResult:
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
        if known.digest != call_digest(*call_of(step)):
            raise ValueError(f"step {step.step!r} differs from the step of this name in the log")
        return known


async def _report(context: TurnContext, report: Report) -> None:
    while True:
        await context.reported.wait()
        await asyncio.sleep(REPORT_AFTER_S)
        context.reported.clear()
        await report(context.reports[-1])
        await asyncio.sleep(PROGRESS_INTERVAL_S)


async def _end_of(workflow: Workflow, context: TurnContext) -> TurnEnd:
    given: WorkflowContext = context
    try:
        # A function may return any type, whatever its annotation.
        returned: Any = await workflow(given, context.turn.parameters)
    except BadInput as error:
        return _failed(context, f"The parameters do not fit. {error}")
    except Exception as error:
        if (failure := _failure_in(error)) is not None:
            return _failed(context, str(failure))
        # Only the type: the message of an unexpected error may contain secrets, and users read the log.
        logger.exception("workflow %s failed", workflow.name)
        return _failed(context, f"{workflow.name} failed: {type(error).__name__}")
    if not isinstance(returned, str):
        kind = type(returned).__name__
        return _failed(context, f"The workflow returned a value of type {kind}; text was expected.")
    try:
        return TurnEnd(content=_storable(returned), outputs=tuple(context.outputs))
    except (ValidationError, UnicodeEncodeError) as error:
        return _failed(context, f"The output of the workflow cannot be stored: {type(error).__name__}")


def _failure_in(error: BaseException) -> WorkflowFailed | None:
    """Return the `WorkflowFailed` in an error or an exception group; None for an unexpected error."""
    if isinstance(error, WorkflowFailed):
        return error
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next((found for one in inner if (found := _failure_in(one)) is not None), None)
    return None


def _failed(context: TurnContext, reason: str) -> TurnEnd:
    text = reason.encode(errors="replace").decode()
    return TurnEnd(status="failed", content=text, outputs=tuple(context.outputs))


def _storable(text: str) -> str:
    text.encode()
    return text

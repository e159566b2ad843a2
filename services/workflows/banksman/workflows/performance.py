"""One execution of a workflow function, and what it wishes for as events of its run.

To the protocol of runs the function is what the model is to an agent: it is asked, its answer is calls or the
end, and it is asked again once the calls have their results.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from banksman.contracts.errors import BadInput, ErrorCode
from banksman.contracts.events import (
    EventBody,
    MessageCompleted,
    ToolCallCompleted,
    ToolCallRequested,
    WorkflowProgress,
)
from banksman.contracts.ids import digest
from banksman.contracts.messages import AssistantMessage, ToolMessage
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult, failed
from banksman.contracts.wire import JsonObject, strict_json
from banksman.runs.owner import Build, Ownership
from banksman.runs.schemas import argument_problem
from banksman.runs.state import Conversation
from banksman.runs.steps import Ask, Ending, deadline_of, finished, next_step
from banksman.workflows.forms import filled
from banksman.workflows.workflow import Workflow, WorkflowFailed

logger = logging.getLogger(__name__)

MAX_FAILURE_CHARS = 1_000
FAREWELL_S = 5.0
"""Seconds that a function gets to clean up when its run has ended without it."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the function returned."""

    text: str


def _answer(said: object) -> _Answer | WorkflowFailed:
    if isinstance(said, str):
        return _Answer(said)
    return WorkflowFailed(f"The workflow returned a value of type {type(said).__name__}; text was expected.")


FindTool = Callable[[str], ToolDefinition | None]


class Performance:
    """The context of one execution; what it was asked for waits here until it is in the log."""

    def __init__(self, owned: Ownership, find_tool: FindTool) -> None:
        self._owned = owned
        self._find_tool = find_tool
        self._recorded = _recorded_calls(owned.state)
        """Calls of earlier executions that this one has not come to yet."""
        self._results = _results(owned.state)
        self._steps: set[str] = set()
        self._waiting: dict[str, asyncio.Future[ToolResult]] = {}
        self._progress: list[WorkflowProgress] = []
        self._calls: list[ToolCall] = []
        self._end: _Answer | WorkflowFailed | None = None
        self._unrecorded: tuple[int, tuple[EventBody, ...]] | None = None
        """What was given out to be recorded and may not be yet, and in which iteration."""
        self._wished = asyncio.Event()

    async def tool(self, name: str, arguments: JsonObject, *, step: str) -> ToolResult:
        """Call a tool; see `WorkflowContext`."""
        call = self._call(name, arguments, step)
        known = self._recorded.pop(call.id, None)
        if known is not None and known.digest != call.digest:
            raise ValueError(f"step {step!r} is another call than in an earlier execution")
        if call.id in self._results:
            return self._results[call.id]
        answered = self._waiting[call.id] = asyncio.get_running_loop().create_future()
        if known is None:
            self._calls.append(call)
            self._wished.set()
        return await answered

    def progress(self, step: int, total: int, message: str) -> None:
        """Tell how far it is; see `WorkflowContext`."""
        if not self._recorded:
            self._progress.append(WorkflowProgress(step=step, total=total, message=message))
            self._wished.set()

    @asynccontextmanager
    async def of(self, workflow: Workflow, parameters: JsonObject) -> AsyncGenerator[None]:
        """Run the function while the context is open; it is cancelled where the run ends without it."""
        task = asyncio.create_task(self._perform(workflow, parameters), name=self._owned.run.run_id)
        try:
            yield
        finally:
            task.cancel()
            _, unfinished = await asyncio.wait([task], timeout=FAREWELL_S)
            if unfinished:
                logger.error("%s does not end when it is cancelled", workflow.name)

    async def next_events(self) -> Build:
        """Wait until the function wishes for something, or the log has news; say what to record."""
        self._deliver()
        known = self._unrecorded
        if known is None or known[0] != self._owned.run.iteration:
            if not (self._calls or self._progress or self._end):
                await self._listen()
            known = self._unrecorded = (self._owned.run.iteration, self._bodies())
        _, bodies = known
        return lambda state: bodies if isinstance(next_step(state, self._now()), Ask) else ()

    def recorded(self) -> None:
        """Note that what `next_events` said is in the log, or came too late for it."""
        self._unrecorded = None

    def unrecordable(self, error: Exception) -> Build:
        """The end of a run whose log cannot hold what its function said."""
        said = str(error).encode(errors="replace").decode()[:MAX_FAILURE_CHARS]
        failure = self._failed(f"What the workflow said does not fit the log: {said}")
        return lambda state: (failure,) if isinstance(next_step(state, self._now()), Ask) else ()

    async def _perform(self, workflow: Workflow, parameters: JsonObject) -> None:
        try:
            values = filled(workflow.definition.parameters_schema, parameters)
            self._end = _answer(await workflow(self, values))
        except WorkflowFailed as failure:
            self._end = failure
        except BadInput as error:
            self._end = WorkflowFailed(f"The parameters do not fit. {error}")
        except asyncio.CancelledError:
            self._end = WorkflowFailed(f"{workflow.name} was cancelled")
            raise
        except Exception as error:
            logger.exception("workflow %s failed", workflow.name)
            self._end = WorkflowFailed(f"{workflow.name} failed: {type(error).__name__}")
        finally:
            self._wished.set()

    def _call(self, name: str, arguments: JsonObject, step: str) -> ToolCall:
        if step in self._steps:
            raise ValueError(f"step {step!r} is used twice")
        self._steps.add(step)
        strict_json(json.dumps(arguments), what="arguments")
        call = ToolCall(id=call_id(self._owned.run.run_id, step), name=name, arguments=arguments)
        tool = self._find_tool(name)
        if tool is None:
            return call
        treatment = {"idempotent": tool.idempotent, "timeout_s": tool.timeout_s, "server": tool.server}
        return call.model_copy(update=treatment)

    def _deliver(self) -> None:
        """Give the function the results that its calls have by now."""
        self._results = _results(self._owned.state)
        for call, answered in tuple(self._waiting.items()):
            if call in self._results:
                del self._waiting[call]
                if not answered.done():
                    answered.set_result(self._results[call])

    async def _listen(self) -> None:
        owned, ports = self._owned, self._owned.ports
        state = owned.state
        self._wished.clear()
        wished = self._wished.wait()
        news = ports.attention.wait(state.tenant, state.conversation_id, deadline_of(owned.run))
        await _first_of(wished, news)
        if not self._wished.is_set():
            await owned.refresh()

    def _bodies(self) -> tuple[EventBody, ...]:
        progress, self._progress = self._progress, []
        calls, self._calls = self._calls, []
        if calls:
            return (*progress, self._message(None), *self._requests(calls))
        match self._end:
            case None:
                return tuple(progress)
            case _Answer(text):
                return (*progress, self._message(text))
            case failure:
                return (*progress, self._failed(str(failure)))

    def _message(self, text: str | None) -> MessageCompleted:
        return MessageCompleted(
            message_id=self._owned.ports.clock.new_id("m"),
            role="assistant",
            content=text,
            finish_reason="tool_calls" if text is None else "stop",
        )

    def _requests(self, calls: list[ToolCall]) -> list[EventBody]:
        refused = [result for call in calls if (result := self._refusal(call)) is not None]
        return [
            *(ToolCallRequested(call=call) for call in calls),
            *(ToolCallCompleted(result=result) for result in refused),
        ]

    def _refusal(self, call: ToolCall) -> ToolResult | None:
        """The result of a call that nobody could execute; None for others."""
        tool = self._find_tool(call.name)
        if tool is None:
            return failed(call.id, "unknown_tool", f"There is no tool {call.name!r}.")
        problem = argument_problem(tool.input_schema, call.arguments)
        if problem is None:
            return None
        return failed(call.id, "invalid_arguments", f"Invalid arguments of {call.name}: {problem}")

    def _failed(self, message: str) -> EventBody:
        ending = Ending("failed", ErrorCode.WORKFLOW_ERROR, message, "not_executed")
        return finished(self._owned.run, "failed", message, ending)

    def _now(self) -> datetime:
        return self._owned.ports.clock.now()


def call_id(run_id: str, step: str) -> str:
    """The id of a step's call: the same in every execution of the run."""
    return f"w{digest(f'{run_id}/{step}'.encode())[:40]}"


def _recorded_calls(state: Conversation) -> dict[str, ToolCall]:
    replies = (message for message in state.history if isinstance(message, AssistantMessage))
    return {call.id: call for reply in replies for call in reply.calls}


def _results(state: Conversation) -> dict[str, ToolResult]:
    messages = (message for message in state.history if isinstance(message, ToolMessage))
    return {message.result.tool_call_id: message.result for message in messages}


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them is over, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

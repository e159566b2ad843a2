"""One execution of a workflow function, and the events of its run.

The function takes the place of the model: it produces the replies of the run. A reply contains calls or the
end of the run. When the calls have their results, the function continues and produces the next reply.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

from banksman.contracts.errors import BadInput, CallerMistake, ErrorCode
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
from banksman.runs.outcome import Ending, finished
from banksman.runs.owner import Build, Ownership, nothing
from banksman.runs.schemas import SchemaChecker
from banksman.runs.state import Conversation
from banksman.runs.steps import RequestModel, deadline_of, next_step
from banksman.workflows.forms import filled
from banksman.workflows.workflow import Workflow, WorkflowFailed

logger = logging.getLogger(__name__)

MAX_FAILURE_CHARS = 1_000
CLEANUP_S = 5.0
"""Seconds within which a cancelled function must end."""

FindTool = Callable[[str], ToolDefinition | None]


class WorkflowExecution:
    """The context of one execution, and the model of its run.

    It buffers the requests of the function until a commit contains them.
    """

    def __init__(self, owned: Ownership, find_tool: FindTool, schemas: SchemaChecker) -> None:
        self._owned = owned
        self._find_tool = find_tool
        self._schemas = schemas
        self._recorded = _recorded_calls(owned.state)
        """Calls of earlier executions that this one has not repeated yet."""
        self._results = _results(owned.state)
        self._steps: set[str] = set()
        self._waiting: dict[str, asyncio.Future[ToolResult]] = {}
        self._progress: list[WorkflowProgress] = []
        self._calls: list[ToolCall] = []
        self._end: str | WorkflowFailed | None = None
        """The returned text or the raised error; None while the function runs."""
        self._uncommitted: tuple[int, tuple[EventBody, ...]] | None = None
        """The events of the last reply until they are committed, and their iteration."""
        self._changed = asyncio.Event()
        owned.on_commit = self._committed

    async def tool(self, name: str, arguments: JsonObject, *, step: str) -> ToolResult:
        """Call a tool; see `WorkflowContext`."""
        call = self._call(name, arguments, step)
        known = self._recorded.pop(call.id, None)
        if known is not None and known.digest != call.digest:
            raise ValueError(f"step {step!r} makes a different call than in an earlier execution")
        if call.id in self._results:
            return self._results[call.id]
        result = self._waiting[call.id] = asyncio.get_running_loop().create_future()
        if known is None:
            self._calls.append(call)
            self._changed.set()
        return await result

    def progress(self, step: int, total: int, message: str) -> None:
        """Report progress; see `WorkflowContext`."""
        # While an execution repeats recorded calls, their progress is in the log already.
        if not self._recorded:
            self._progress.append(WorkflowProgress(step=step, total=total, message=message))
            self._changed.set()

    @asynccontextmanager
    async def running(self, workflow: Workflow, parameters: JsonObject) -> AsyncGenerator[None]:
        """Run the function while the context is open; cancel it if its run ends first."""
        task = asyncio.create_task(self._execute(workflow, parameters), name=self._owned.run.run_id)
        try:
            yield
        finally:
            task.cancel()
            _, unfinished = await asyncio.wait([task], timeout=CLEANUP_S)
            if unfinished:
                logger.error("%s does not end when it is cancelled", workflow.name)

    async def complete(self, owned: Ownership) -> Build:
        """Wait for a request of the function or a change of the log; return what builds the next commit."""
        self._return_results()
        if self._uncommitted is None or self._uncommitted[0] != owned.run.iteration:
            if not (self._calls or self._progress or self._end is not None):
                await self._wait()
            events = await self._events()
            # Retained until committed: the broker may be unavailable, and the function requests them only
            # once.
            self._uncommitted = (owned.run.iteration, events) if events else None
            return partial(self._unless_ended, events)
        return partial(self._unless_ended, self._uncommitted[1])

    def too_large(self, error: Exception, reply: Build) -> tuple[Ending, Build] | None:
        """Return the end of a run whose log cannot store a result or request of its function."""
        if not isinstance(error, CallerMistake | ValueError):
            return None
        text = str(error).encode(errors="replace").decode()[:MAX_FAILURE_CHARS]
        return _failure(f"The log cannot store the result of the workflow: {text}"), nothing

    async def _execute(self, workflow: Workflow, parameters: JsonObject) -> None:
        try:
            values = filled(workflow.definition.parameters_schema, parameters)
            self._end = _checked(await workflow(self, values))
        except WorkflowFailed as failure:
            self._end = failure
        except BadInput as error:
            self._end = WorkflowFailed(f"The parameters do not fit. {error}")
        except asyncio.CancelledError:
            self._end = WorkflowFailed(f"{workflow.name} was cancelled")
            raise
        except Exception as error:
            # The type only: the message of an unforeseen error may hold secrets, and the log is for users.
            logger.exception("workflow %s failed", workflow.name)
            self._end = WorkflowFailed(f"{workflow.name} failed: {type(error).__name__}")
        finally:
            self._changed.set()

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

    def _return_results(self) -> None:
        """Return the committed results to the function."""
        self._results = _results(self._owned.state)
        for call, result in tuple(self._waiting.items()):
            if call in self._results:
                del self._waiting[call]
                if not result.done():
                    result.set_result(self._results[call])

    async def _wait(self) -> None:
        owned = self._owned
        self._changed.clear()
        notified = owned.ports.notifications.wait(owned.state, deadline_of(owned.run))
        await _first_of(self._changed.wait(), notified)
        if not self._changed.is_set():
            await owned.refresh()

    async def _events(self) -> tuple[EventBody, ...]:
        progress, self._progress = self._progress, []
        calls, self._calls = self._calls, []
        if calls:
            return (*progress, self._message(None), *await self._requests(calls))
        match self._end:
            case None:
                return tuple(progress)
            case str() as text:
                return (*progress, self._message(text))
            case failure:
                ending = _failure(str(failure))
                return (*progress, finished(self._owned.run, "failed", ending.message, ending))

    def _message(self, text: str | None) -> MessageCompleted:
        return MessageCompleted(
            message_id=self._owned.ports.clock.new_id("m"),
            role="assistant",
            content=text,
            finish_reason="tool_calls" if text is None else "stop",
        )

    async def _requests(self, calls: list[ToolCall]) -> list[EventBody]:
        refused = [result for call in calls if (result := await self._refusal(call)) is not None]
        return [
            *(ToolCallRequested(call=call) for call in calls),
            *(ToolCallCompleted(result=result) for result in refused),
        ]

    async def _refusal(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that cannot be executed; None for others."""
        tool = self._find_tool(call.name)
        if tool is None:
            return failed(call.id, "unknown_tool", f"There is no tool {call.name!r}.")
        problem = await self._schemas.argument_problem(self._owned.state.tenant, tool, call.arguments)
        if problem is None:
            return None
        return failed(call.id, "invalid_arguments", f"Invalid arguments of {call.name}: {problem}")

    def _unless_ended(self, events: tuple[EventBody, ...], state: Conversation) -> tuple[EventBody, ...]:
        return events if isinstance(next_step(state, self._now()), RequestModel) else ()

    def _committed(self) -> None:
        self._uncommitted = None

    def _now(self) -> datetime:
        return self._owned.ports.clock.now()


def call_id(run_id: str, step: str) -> str:
    """Return the id of a step's call, which is the same in every execution of the run."""
    return f"w{digest(f'{run_id}/{step}'.encode())[:40]}"


def _checked(returned: object) -> str:
    if isinstance(returned, str):
        return returned
    raise WorkflowFailed(
        f"The workflow returned a value of type {type(returned).__name__}; text was expected."
    )


def _failure(message: str) -> Ending:
    return Ending("failed", ErrorCode.WORKFLOW_ERROR, message, "not_executed")


def _recorded_calls(state: Conversation) -> dict[str, ToolCall]:
    replies = (message for message in state.history if isinstance(message, AssistantMessage))
    return {call.id: call for reply in replies for call in reply.calls}


def _results(state: Conversation) -> dict[str, ToolResult]:
    messages = (message for message in state.history if isinstance(message, ToolMessage))
    return {message.result.tool_call_id: message.result for message in messages}


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them ends, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

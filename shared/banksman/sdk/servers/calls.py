"""The calls that one process of a tool server executes. Each request gets an immediate reply."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from faststream.nats import NatsRouter
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from banksman.bus.connection import Bus
from banksman.bus.control_plane.broker import NoReply
from banksman.bus.control_plane.control import Received, check_subject
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.calls import (
    PRESENCE,
    PROGRESS_AFTER_S,
    SUCCESSOR_S,
    CallProgress,
    CallReply,
    CallRequest,
    CancelCall,
)
from banksman.contracts.errors import BadInput, BanksmanError, Unavailable
from banksman.contracts.subjects import ANY
from banksman.contracts.tools import ErrorKind, ToolResult
from banksman.contracts.wire import JsonObject
from banksman.runs.runners.calls import RunnerCalls
from banksman.runs.runners.lease import Lease, LeaseLost
from banksman.runtime.redaction import redacted, remember, without_secrets
from banksman.runtime.waits import all_ended
from banksman.sdk.blocking import StillRunning
from banksman.sdk.parameters import ToolContext
from banksman.sdk.tools import AnyTool, ToolFailed

MAX_RESULT_CHARS = 10_000
"""Maximum characters of a result's JSON; a model receives the beginning of a longer result."""
CLEANUP_S = 1.0
"""Seconds within which a cancelled function must end."""

StopReason = Literal["cancelled", "timeout"]
Stop = asyncio.Future[StopReason]
"""Set to end a running call."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    content: JsonObject
    error_kind: ErrorKind | None = None
    truncated: bool = False


async def execute(tool: AnyTool, request: CallRequest, server: str, stop: Stop) -> ToolResult:
    """Execute a call until it ends, times out, or `stop` is set. No result or log shows its secrets."""
    remember(request.secrets.values())
    started_at = datetime.now(UTC)
    outcome = await _outcome(tool, request, stop, started_at)
    return ToolResult(
        tool_call_id=request.call.id,
        content=outcome.content,
        is_error=outcome.error_kind is not None,
        error_kind=outcome.error_kind,
        truncated=outcome.truncated,
        duration_ms=int((datetime.now(UTC) - started_at) / timedelta(milliseconds=1)),
        runner=server,
        started_at=started_at,
    )


async def _outcome(tool: AnyTool, request: CallRequest, stop: Stop, now: datetime) -> _Outcome:
    left_s = (request.deadline - now).total_seconds()
    limit_s = min(request.call.timeout_s, left_s)
    if limit_s <= 0:
        return _failure("timeout", "the run timed out before the call could start")
    context = ToolContext(
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        tool_call_id=request.call.id,
        deadline=now + timedelta(seconds=limit_s),
        secrets=request.secrets,
        traceparent=request.traceparent,
    )
    task = asyncio.create_task(tool.invoke(request.call.arguments, context), name=request.attempt)
    timed_out = False
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.wait({task, cast("asyncio.Future[Any]", stop)}, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        timed_out = True
    finally:
        await _ended(task)
    if timed_out:
        stopped = _failure("timeout", f"{tool.name} did not end within its timeout of {limit_s:g} s")
    elif task.cancelled() or _continues(task):
        reason = stop.result() if stop.done() else "cancelled"
        stopped = _failure(reason, f"{tool.name} was ended: {reason}")
    else:
        return _finished(tool, task)
    return _unknown(tool, stopped) if _continues(task) else stopped


async def _ended(task: asyncio.Task[object]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CLEANUP_S)


def _continues(task: asyncio.Task[object]) -> bool:
    return not task.done() or (not task.cancelled() and isinstance(task.exception(), StillRunning))


def _unknown(tool: AnyTool, stopped: _Outcome) -> _Outcome:
    """Return the result of a stopped call whose function could not be ended and may still have effects."""
    logger.error("%s could not be ended and may still act", tool.name)
    return _failure("unknown_outcome", f"{stopped.content['error']}; it could not be ended and may still act")


def _finished(tool: AnyTool, task: asyncio.Task[object]) -> _Outcome:
    error = task.exception()
    if error is None:
        return _returned(tool, task.result())
    match error:
        case BadInput():
            return _failure("invalid_arguments", f"Invalid arguments of {tool.name}: {error}")
        case ToolFailed():
            return _failure(error.kind, str(error))
        case _:
            logger.error("tool %s failed", tool.name, exc_info=error)
            return _failure("tool_error", f"{tool.name} failed: {_described(error)}")


def _returned(tool: AnyTool, value: object) -> _Outcome:
    try:
        plain = to_jsonable_python(value)
        written = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        text = without_secrets(written)
        plain = plain if text == written else json.loads(text)
        text.encode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        logger.error("the result of tool %s is not valid JSON: %s", tool.name, error)
        problem = f"returned a value of type {type(value).__name__} that cannot be written as JSON: {error}"
        return _failure("tool_error", f"{tool.name} {problem}")
    if len(text) > MAX_RESULT_CHARS:
        note = f"The result has {len(text)} characters; these are the first {MAX_RESULT_CHARS}."
        return _Outcome(
            {"success": True, "result": text[:MAX_RESULT_CHARS], "truncated": True, "note": note},
            truncated=True,
        )
    content: JsonObject = (
        {"success": True, **plain} if isinstance(plain, dict) else {"success": True, "result": plain}
    )
    return _Outcome(content, "tool_error" if content["success"] is False else None)


def _failure(kind: ErrorKind, error: str) -> _Outcome:
    # Error messages of HTTP libraries contain the URL of the failed request, often with its key.
    shown = redacted(error.encode(errors="replace").decode())[:MAX_RESULT_CHARS]
    return _Outcome({"success": False, "error": shown, "error_kind": kind}, kind)


def _described(error: BaseException) -> str:
    """Return the text of an error with its causes, which often contain the reason of a failed connection."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{text} ({_described(cause)})" if isinstance(cause, OSError) else text


logger = logging.getLogger(__name__)

ACCEPTED_AFTER_S = 0.5
"""Seconds to wait for a stored start, which then replaces the reply `accepted`."""
KILL_S = 5.0
"""Seconds within which ended calls must store their results."""


@dataclass
class ServedCalls:
    bus: Bus
    runner_calls: RunnerCalls
    lease: Lease
    tools: Mapping[str, AnyTool]
    tasks: asyncio.TaskGroup
    """Ends with the lease and cancels all calls."""
    draining: bool = False
    _stops: dict[str, Stop] = field(default_factory=dict[str, Stop])
    """Stop signals of running calls by tenant and attempt."""
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def on_call(self, request: CallRequest, message: Message) -> CallReply | None:
        """Return the reply to `tool.call`. A repeated request for the same attempt is safe.

        Every process of the server receives the request; None is returned by those that it does not name, and
        if the stored start already shows that the call was accepted.
        """
        request = request.with_local_deadline(datetime.now(UTC))
        check_subject(message, request.tenant, request.conversation_id)
        if request.runner_epoch != self.runner_calls.runner_epoch:
            return None
        return self._accept(request, message.reply)

    def on_cancel(self, cancel: CancelCall, message: Message) -> CallReply | None:
        """End a call; return None if it does not run here, because another process may have it."""
        tenant = message.subject.split(".")[3]
        check_subject(message, tenant, cancel.attempt)
        if cancel.attempt == PRESENCE:
            return self._presence(cancel, message.reply)
        stop = self._stops.get(f"{tenant}.{cancel.attempt}")
        if stop is None:
            return None
        if not stop.done():
            stop.set_result(cancel.reason)
        return CallReply(answer="accepted")

    def _presence(self, check: CancelCall, reply_to: str) -> CallReply | None:
        """Reply to a check of this process, and later to one of a process that may be its former life."""
        epoch, taken = self.runner_calls.runner_epoch, self.lease.taken
        present = CallReply(answer="done", runner_epoch=epoch, leased_at=taken)
        if check.runner_epoch is None or check.runner_epoch == epoch:
            return present
        if taken > (check.renewed_at or 0):
            self.tasks.create_task(self._follow(present, reply_to), name="presence")
        return None

    async def _follow(self, present: CallReply, reply_to: str) -> None:
        await asyncio.sleep(SUCCESSOR_S)
        with contextlib.suppress(Unavailable):
            await self.bus.publish(reply_to, present.model_dump_json().encode())

    async def drain(self, grace_s: float) -> None:
        """Accept no more calls, wait `grace_s` seconds for running calls, then end them."""
        self.draining = True
        await all_ended(self._running, grace_s)
        for stop in self._stops.values():
            if not stop.done():
                stop.set_result("cancelled")
        await all_ended(self._running, KILL_S)

    def _accept(self, request: CallRequest, reply_to: str) -> CallReply | None:
        tool = self.tools.get(request.call.name)
        if tool is None:
            return CallReply(
                answer="refused", reason=f"{self.runner_calls.runner} has no tool {request.call.name!r}."
            )
        reply, admitted = self.runner_calls.admit(request)
        if not admitted:
            return reply
        start_replies = request.start_suffices and not tool.definition.idempotent
        execution = self._execute(tool, request, reply_to if start_replies else None)
        task = self.tasks.create_task(execution, name=request.attempt)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return None if start_replies else reply

    async def _execute(self, tool: AnyTool, request: CallRequest, reply_to: str | None) -> None:
        """Execute an admitted call. If storing its start takes long, reply `accepted` on `reply_to`."""
        loop = asyncio.get_running_loop()
        accepts = None if reply_to is None else loop.call_later(ACCEPTED_AFTER_S, self._accepts, reply_to)
        key = f"{request.tenant}.{request.attempt}"
        stop = self._stops[key] = loop.create_future()

        async def started(request: CallRequest) -> ToolResult:
            # The process may have been suspended while the start was stored, so another may own the call.
            if not self.lease.holds:
                raise LeaseLost("the lease ended before the call could start")
            if accepts is not None:
                accepts.cancel()
            shown = loop.call_later(PROGRESS_AFTER_S, self._show_start, request)
            try:
                return await execute(tool, request, self.runner_calls.runner, stop)
            finally:
                shown.cancel()

        try:
            await self.runner_calls.perform(request, started)
        except BanksmanError as error:
            logger.error("%s: ended without a stored result: %s", request.attempt, error)
        except Exception:
            logger.exception("%s: ended without a stored result", request.attempt)
        finally:
            self._stops.pop(key, None)
            if accepts is not None:
                accepts.cancel()

    def _accepts(self, reply_to: str) -> None:
        self.tasks.create_task(self._publish(reply_to, CallReply(answer="accepted")))

    def _show_start(self, request: CallRequest) -> None:
        if not request.progress:
            return
        progress = CallProgress(
            conversation_id=request.conversation_id,
            run_id=request.run_id,
            tool_call_id=request.call.id,
            kind="started",
            runner=self.runner_calls.runner,
            ticket=request.output_ticket,
        )
        subject = subjects.tool_progress(request.tenant, request.conversation_id)
        self.tasks.create_task(self._publish(subject, progress))

    async def _publish(self, subject: str, message: BaseModel) -> None:
        with contextlib.suppress(Unavailable):
            await self.bus.publish(subject, message.model_dump_json().encode())


def tool_router(server: str, calls: ServedCalls) -> NatsRouter:
    router = NatsRouter()

    # One worker, because both handlers return at once, and more workers cost a task and a queue per message.
    @router.subscriber(subjects.tool_call(server, ANY, ANY))
    async def call(request: CallRequest, message: Received) -> CallReply:
        """Run a call once. The reply states whether it is accepted; its result is published as an event."""
        return _unless_none(calls.on_call(request, message))

    @router.subscriber(subjects.tool_cancel(server, ANY, ANY))
    async def cancel(request: CancelCall, message: Received) -> CallReply:
        """End a call and store its result."""
        return _unless_none(calls.on_cancel(request, message))

    return router


def _unless_none(reply: CallReply | None) -> CallReply:
    if reply is None:
        raise NoReply
    return reply

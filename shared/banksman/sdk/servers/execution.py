"""Execute one call of a tool. Every outcome becomes a `ToolResult`."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from banksman.contracts.calls import CallRequest
from banksman.contracts.errors import BadInput
from banksman.contracts.tools import ErrorKind, ToolResult
from banksman.contracts.wire import JsonObject
from banksman.runtime.redaction import redacted, remember, without_secrets
from banksman.sdk.blocking import StillRunning
from banksman.sdk.parameters import ToolContext
from banksman.sdk.tools import AnyTool, ToolFailed

logger = logging.getLogger(__name__)

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
    """Return whether the function could not be ended and still runs."""
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

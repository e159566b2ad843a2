"""The events of results, in a size that commits can hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from banksman.contracts.events import EventBody, ToolCallCompleted, WorkspaceChanged, WorkspaceRestored
from banksman.contracts.fitting import first_fitting, json_bytes
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage
from banksman.contracts.tools import ToolResult, failed
from banksman.contracts.wire import MAX_DEPTH, depth_of
from banksman.contracts.workspaces import WorkspaceLoss
from banksman.runs.state import Conversation

COMMIT_BYTES = 512 * 1024
"""Bytes of JSON of the results in one commit; further results go into the next one."""
RESULT_BYTES = 256 * 1024
"""Bytes of JSON of one result; a longer one is replaced by a failure that says so."""
MAX_NAMED_CALLS = 100
"""Calls that a loss names, the last ones; a conversation may have had thousands."""


def storable(result: ToolResult) -> ToolResult:
    """Return the result, or a failure in its place that says why the log does not store it.

    Tool servers of tenants choose what they return, so size and depth are checked before the commit.
    """
    if depth_of(result.content) > MAX_DEPTH:
        return _replaced(result, f"The result was nested more than {MAX_DEPTH} levels deep; it is not kept.")
    return first_fitting(_shorter(result), RESULT_BYTES)


def batches(results: Iterable[ToolResult]) -> Iterator[tuple[ToolResult, ...]]:
    """Yield the results in groups that fit one commit each."""
    batch: list[ToolResult] = []
    size = 0
    for result in results:
        # The changed paths are stored twice: in the result, and in an event of their own.
        more = json_bytes(result) + sum(json_bytes(change) for change in result.changed)
        if batch and size + more > COMMIT_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(result)
        size += more
    if batch:
        yield tuple(batch)


def completions(state: Conversation, results: Iterable[ToolResult]) -> list[EventBody]:
    """Return the events of the results that the log does not have yet."""
    run = state.run
    waiting = {call.call.id for call in run.open_calls} if run is not None else set[str]()
    bodies: list[EventBody] = []
    for result in results:
        if result.tool_call_id not in waiting:
            continue
        bodies.append(ToolCallCompleted(result=result))
        if result.changed:
            bodies.append(WorkspaceChanged(paths=tuple(change.model_dump() for change in result.changed)))
    return bodies


def losses(state: Conversation, known: Iterable[WorkspaceLoss | None]) -> list[WorkspaceRestored]:
    """Return the newest loss of a moved workspace as an event; nothing if the log already has it."""
    newest = max((loss for loss in known if loss is not None), key=lambda loss: loss.term, default=None)
    if newest is None or newest.term <= state.restored_term:
        return []
    since = newest.snapshot_ts if newest.reason is None else None
    lost = tuple(_changing_calls(state.history, since))[-MAX_NAMED_CALLS:]
    return [
        WorkspaceRestored(
            snapshot_ts=newest.snapshot_ts, lost_calls=lost, term=newest.term, reason=newest.reason
        )
    ]


def _shorter(result: ToolResult) -> Iterator[ToolResult]:
    yield result
    yield _replaced(result, f"The result had {json_bytes(result)} bytes; at most {RESULT_BYTES} are kept.")


def _replaced(result: ToolResult, why: str) -> ToolResult:
    replacement = failed(result.tool_call_id, "output_limit", f"{why} The call was executed.")
    kept = {"runner": result.runner, "started_at": result.started_at, "duration_ms": result.duration_ms}
    return replacement.model_copy(update=kept)


def _changing_calls(history: Iterable[Message], since: datetime | None) -> Iterator[str]:
    """Ids of the calls that may have changed files after `since`; None for all of them."""
    harmless: set[str] = set()
    for message in history:
        match message:
            case AssistantMessage():
                harmless = {call.id for call in message.calls if call.idempotent or call.server is not None}
            case ToolMessage(result=result) if result.tool_call_id not in harmless:
                if _may_have_run(result) and (since is None or _ended_after(result, since)):
                    yield result.tool_call_id
            case _:
                pass


def _may_have_run(result: ToolResult) -> bool:
    return result.runner is not None or result.error_kind == "unknown_outcome"


def _ended_after(result: ToolResult, since: datetime) -> bool:
    # When a call with an unknown outcome ran is unknown too, so it counts.
    return result.started_at is None or result.started_at > since

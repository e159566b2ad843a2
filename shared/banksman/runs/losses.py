"""Telling a log, once, which changes of its workspace may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from banksman.contracts.events import WorkspaceRestored
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage
from banksman.contracts.tools import ToolResult
from banksman.contracts.workspaces import WorkspaceLoss
from banksman.runs.state import Conversation

MOST_NAMED = 100
"""Calls that are named, the last ones; a conversation may have had thousands."""


def losses(state: Conversation, known: Iterable[WorkspaceLoss | None]) -> list[WorkspaceRestored]:
    """The newest loss as an event, unless the log tells it already."""
    newest = max((loss for loss in known if loss is not None), key=lambda loss: loss.term, default=None)
    if newest is None or newest.term <= state.restored_term:
        return []
    since = newest.snapshot_ts if newest.reason is None else None
    lost = tuple(_changing_calls(state.history, since))[-MOST_NAMED:]
    return [
        WorkspaceRestored(
            snapshot_ts=newest.snapshot_ts, lost_calls=lost, term=newest.term, reason=newest.reason
        )
    ]


def _changing_calls(history: Iterable[Message], since: datetime | None) -> Iterator[str]:
    """Ids of calls that may have changed files after `since`; None for all."""
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
    """Whether it may have changed something after `since`; nobody saw when an unknown one was at work."""
    return result.started_at is None or result.started_at > since

"""Reports of runners about their workspaces, recorded in the bucket by which calls are placed."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.names import ASSISTANTS, CONVERSATIONS, OWNERS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.assistants import Assistant, ConversationRecord
from banksman.contracts.ids import check_token
from banksman.contracts.workspaces import WorkspaceOwner, WorkspaceReport, WorkspaceReportReply
from banksman.runs.runners.workspaces import apply_report


class WorkspaceReports:
    """Records the reports of runners. Any agent may serve them: each report is one compare-and-set."""

    def __init__(self, bus: Bus) -> None:
        self._owners = Bucket(bus, OWNERS, WorkspaceOwner)
        self._conversations = Bucket(bus, CONVERSATIONS, ConversationRecord)
        self._assistants = Bucket(bus, ASSISTANTS, Assistant)

    async def on_report(self, report: WorkspaceReport, subject: str) -> WorkspaceReportReply:
        """Record a report. Safe to repeat: a report contains the current state, not a change."""
        *_, runner, tenant, conversation_id = subject.split(".")
        key = f"{check_token(tenant, 'tenant')}.{check_token(conversation_id, 'conversation_id')}"
        assistant = await self._assistant_of(tenant, key) if report.starts else None
        while True:
            entry = await self._owners.get(key)
            record, verdict = apply_report(entry and entry.value, runner, report, assistant)
            if entry is None or record is None:
                return verdict
            if await self._owners.update(key, record, entry.revision) is not None:
                return verdict

    async def _assistant_of(self, tenant: str, key: str) -> Assistant | None:
        """Return the current assistant of a conversation; None if one of them is missing."""
        conversation = await self._conversations.get(key)
        if conversation is None:
            return None
        entry = await self._assistants.get(f"{tenant}.{conversation.value.assistant}")
        return entry and entry.value.model_copy(update={"revision": entry.revision})

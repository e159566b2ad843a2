"""What runners tell of their workspaces, written where calls are placed."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.messages import Message
from banksman.bus.names import ASSISTANTS, CONVERSATIONS, OWNERS
from banksman.contracts.assistants import Assistant, ConversationRecord
from banksman.contracts.ids import check_token
from banksman.contracts.wire import parse
from banksman.contracts.workspaces import WorkspaceOwner, WorkspaceReport
from banksman.runs.workspaces import reported


class WorkspaceReports:
    """Answers `workspace.report`; any agent may, each report is one compare-and-set."""

    def __init__(self, bus: Bus) -> None:
        self._owners = Bucket(bus, OWNERS, WorkspaceOwner)
        self._conversations = Bucket(bus, CONVERSATIONS, ConversationRecord)
        self._assistants = Bucket(bus, ASSISTANTS, Assistant)

    async def on_report(self, message: Message) -> bytes:
        """Take in a report. Safe to repeat: it says what is so, not what to do.

        Raises:
            BadInput: it cannot be read.
            Unavailable: it could not be stored; ask again.
        """
        report = parse(WorkspaceReport, message.data)
        *_, runner, tenant, conversation_id = message.subject.split(".")
        key = f"{check_token(tenant, 'tenant')}.{check_token(conversation_id, 'conversation_id')}"
        assistant = await self._assistant_of(tenant, key) if report.starts else None
        while True:
            entry = await self._owners.get(key)
            record, verdict = reported(entry and entry.value, runner, report, assistant)
            if entry is None or record is None:
                return verdict.model_dump_json().encode()
            if await self._owners.update(key, record, entry.revision) is not None:
                return verdict.model_dump_json().encode()

    async def _assistant_of(self, tenant: str, key: str) -> Assistant | None:
        """The assistant of a conversation as it is now; None when either is gone."""
        conversation = await self._conversations.get(key)
        if conversation is None:
            return None
        entry = await self._assistants.get(f"{tenant}.{conversation.value.assistant}")
        return entry and entry.value.model_copy(update={"revision": entry.revision})

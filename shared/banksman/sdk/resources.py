"""Requests of a client about conversations, files, assistants, tools and usage."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from banksman.contracts.approvals import ApprovalItem
from banksman.contracts.assistants import (
    Assistant,
    AssistantBody,
    AssistantList,
    AssistantUpdate,
    ConversationRecord,
    NewAssistant,
)
from banksman.contracts.processes import ProcessInfo, ProcessOutput
from banksman.contracts.registry import CallPage, ToolView, ToolViews, WorkflowDefinition
from banksman.contracts.runner_requests import FileEntry, WorkspaceDiff
from banksman.contracts.usage import UsageReport
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token

if TYPE_CHECKING:
    from banksman.sdk.transports.nats import NatsTransport
    from banksman.sdk.transports.web import WebTransport


class ConversationPage(Stored):
    """A page of the conversations, newest first."""

    items: tuple[ConversationRecord, ...]
    next: str | None = None
    """`cursor` of the next page; None at the end."""


class ListedApproval(Stored):
    """An approval request without a decision."""

    approval_id: Token
    conversation_id: Token
    run_id: Token
    expires_at: Timestamp
    items: tuple[ApprovalItem, ...]


class _Approvals(Stored):
    items: tuple[ListedApproval, ...]


class _Workflows(Stored):
    items: tuple[WorkflowDefinition, ...]


class _Processes(Stored):
    items: tuple[ProcessInfo, ...]


class _Deleted(Stored):
    pass


class Resources:
    """Requests that start no run. All raise `RemoteError` and `Unavailable`, like those of `Client`."""

    def __init__(self, transport: NatsTransport | WebTransport) -> None:
        self._transport = transport

    async def conversations(
        self, *, query: str = "", label: str = "", cursor: str | None = None, limit: int = 50
    ) -> ConversationPage:
        """Return conversations, newest first.

        Args:
            query: A part of their titles or labels.
            label: A label that they have.
            cursor: `next` of the previous page.
            limit: At most so many, up to 200.
        """
        body: JsonObject = {"limit": limit}
        if label:
            body["label"] = label
        if query:
            body["q"] = query
        if cursor is not None:
            body["cursor"] = cursor
        return await self._transport.call("conversation.list", ConversationPage, body=body)

    async def rename_conversation(self, conversation_id: str, title: str) -> ConversationRecord:
        """Change the title of a conversation."""
        body: JsonObject = {"title": title}
        return await self._transport.call(
            "conversation.rename", ConversationRecord, conversation_id, body=body
        )

    async def label_conversation(self, conversation_id: str, *labels: str) -> ConversationRecord:
        """Replace the labels of a conversation."""
        body: JsonObject = {"labels": list(labels)}
        return await self._transport.call(
            "conversation.rename", ConversationRecord, conversation_id, body=body
        )

    async def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation, and end its open runs."""
        await self._transport.call("conversation.delete", _Deleted, conversation_id)

    async def open_approvals(self) -> tuple[ListedApproval, ...]:
        """Return the tenant's approval requests without a decision, oldest first, at most 1,000."""
        return (await self._transport.call("approval.list", _Approvals)).items

    async def calls(self, run_id: str, *, after: int = 0, limit: int = 50) -> CallPage:
        """Return a page of calls with whole parameters and results; `after` is the number of calls to skip.

        Over NATS a page has at most 1 MiB; after `too_large`, request it with a smaller `limit`.
        """
        body: JsonObject = {"after": after, "limit": limit}
        return await self._transport.call("run.calls", CallPage, run_id, body=body)

    async def workflows(self) -> tuple[WorkflowDefinition, ...]:
        """Return the workflows that `start_workflow` starts."""
        return (await self._transport.call("workflow.list", _Workflows)).items

    async def files(self, conversation_id: str, path: str = "") -> tuple[FileEntry, ...]:
        """Return the files of a conversation's workspace below a path, at most 10,000."""
        return await self._transport.files.list(conversation_id, path)

    async def read_file(self, conversation_id: str, path: str | PurePosixPath) -> bytes:
        """Return the content of a file of a conversation's workspace."""
        return await self._transport.files.read(conversation_id, str(path))

    async def write_file(self, conversation_id: str, path: str | PurePosixPath, data: bytes) -> None:
        """Store a file in a conversation's workspace; an existing file is replaced."""
        await self._transport.files.write(conversation_id, str(path), data)

    async def delete_file(self, conversation_id: str, path: str | PurePosixPath) -> None:
        """Delete a file of a conversation's workspace."""
        await self._transport.files.delete(conversation_id, str(path))

    async def diff(self, conversation_id: str, *, since: str = "", path: str = "") -> WorkspaceDiff:
        """Return what has changed in a conversation's workspace since a run began, with a patch.

        Without `since`, since the workspace began. With `path`, only that file.
        """
        body: JsonObject = {"since": since, "path": path}
        return await self._transport.call("file.diff", WorkspaceDiff, conversation_id, body=body)

    async def processes(self, conversation_id: str) -> tuple[ProcessInfo, ...]:
        """Return the processes of a conversation that outlive their calls, also the last that ended."""
        return (await self._transport.call("process.list", _Processes, conversation_id)).items

    async def process_output(
        self, conversation_id: str, process_id: str, *, after: int | None = None
    ) -> ProcessOutput:
        """Return the output of a process after `after` bytes, or its last part, of at most 64 KiB."""
        body: JsonObject = {"process_id": process_id}
        if after is not None:
            body["after"] = after
        return await self._transport.call("process.read", ProcessOutput, conversation_id, body=body)

    async def stop_process(self, conversation_id: str, process_id: str) -> ProcessInfo:
        """Stop a process of a conversation, with all that it has started, and return its state."""
        body: JsonObject = {"process_id": process_id}
        return await self._transport.call("process.stop", ProcessInfo, conversation_id, body=body)

    async def assistants(self) -> tuple[Assistant, ...]:
        """Return all assistants of the tenant, sorted by id."""
        return (await self._transport.call("assistant.list", AssistantList)).items

    async def assistant(self, assistant_id: str) -> Assistant:
        """Return one assistant. Every tenant has an assistant `default`."""
        return await self._transport.call("assistant.read", Assistant, assistant_id)

    async def create_assistant(self, body: NewAssistant, *, request_id: str | None = None) -> Assistant:
        """Create an assistant. Conversations refer to it by its id."""
        fields = body.model_dump(mode="json")
        return await self._transport.call("assistant.create", Assistant, body=fields, request_id=request_id)

    async def update_assistant(
        self, assistant_id: str, body: AssistantBody, *, revision: int | None = None
    ) -> Assistant:
        """Replace an assistant for runs that start later, if `revision` is the current one or None."""
        fields = {name: getattr(body, name) for name in AssistantBody.model_fields}
        update = AssistantUpdate(**fields, revision=revision).model_dump(mode="json")
        return await self._transport.call("assistant.update", Assistant, assistant_id, body=update)

    async def delete_assistant(self, assistant_id: str) -> None:
        """Delete an assistant. Its open runs continue; its conversations cannot start new ones."""
        await self._transport.call("assistant.delete", _Deleted, assistant_id)

    async def tools(self) -> tuple[ToolView, ...]:
        """Return the tools that the tenant's models may call, the built-in ones first."""
        return (await self._transport.call("tool.list", ToolViews)).items

    async def tool(self, name: str) -> ToolView:
        """Return a tool; raise `RemoteError` if the tenant's models may call none of this name."""
        return await self._transport.call("tool.read", ToolView, name)

    async def usage(self) -> UsageReport:
        """Return the tenant's usage of the current day and month, and its limits."""
        return await self._transport.call("usage", UsageReport)

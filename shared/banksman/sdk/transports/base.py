"""The interface between a client and its transport: NATS, or the websocket and HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from pydantic import BaseModel

from banksman.contracts.calls import FileEntry
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    Detail,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import ApprovalRequest
from banksman.sdk.events import EventFrame, LiveFrame

M = TypeVar("M", bound=BaseModel)
RequestFrame = ConversationCreate | ChatSend | RunCancel | ApprovalDecision | WorkflowStart | InputReply


class WorkspaceFiles(Protocol):
    """The files of workspaces."""

    async def list(self, conversation_id: str, path: str) -> tuple[FileEntry, ...]:
        """Return the files below a path."""
        ...

    async def read(self, conversation_id: str, path: str) -> bytes:
        """Return the content of a file."""
        ...

    async def write(self, conversation_id: str, path: str, data: bytes) -> None:
        """Store a file."""
        ...

    async def delete(self, conversation_id: str, path: str) -> None:
        """Delete a file."""
        ...


class ClientTransport(Protocol):
    """One connection to the gateways. It reconnects, and repeats requests under their ids."""

    @property
    def tenant(self) -> str:
        """The tenant of the requests."""
        ...

    @property
    def files(self) -> WorkspaceFiles:
        """The files of workspaces."""
        ...

    async def ready(self, timeout_s: float) -> None:
        """Make a round trip; raise `Unavailable` if there is no reply in time."""
        ...

    async def send(self, frame: RequestFrame, name: str | None = None) -> Ack:
        """Send a frame; `name` is the id that its subject ends with."""
        ...

    async def call(
        self,
        operation: str,
        reply: type[M],
        *names: str,
        body: JsonObject | None = None,
        request_id: str | None = None,
    ) -> M:
        """Call an operation such as `assistant.read` on the object that `names` identifies."""
        ...

    def follow(
        self, conversation_id: str, after_seq: int, detail: Detail, *, live: bool
    ) -> AsyncGenerator[EventFrame | LiveFrame]:
        """Yield each event after `after_seq` once and in order; with `live`, also text being written."""
        ...

    def approvals(self) -> AbstractAsyncContextManager[AsyncIterator[ApprovalRequest]]:
        """Receive the tenant's new approval requests."""
        ...

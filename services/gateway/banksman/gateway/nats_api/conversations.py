"""Conversations, their runs and events, and open requests to users."""

from __future__ import annotations

from banksman.bus.control_plane.control import Received
from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.call_pages import CallPage
from banksman.contracts.errors import ErrorCode
from banksman.contracts.nats_api import Replay
from banksman.gateway.nats_api.endpoints import Endpoints, caller_of, named_by, request_id_of, tenant_of
from banksman.gateway.nats_api.messages import Deleted, ListCalls, ListConversations, ListPending, ReadRun
from banksman.gateway.nats_api.replays import Replays
from banksman.gateway.service import resources
from banksman.gateway.service.bodies import (
    ApprovalPage,
    Conversation,
    ConversationPage,
    EndedRun,
    ExportedConversation,
    InputPage,
    Listing,
    Rename,
    Run,
)
from banksman.gateway.service.gateway import Gateway

MISSING, CONFLICT, EARLY = ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.NOT_READY


def add_conversations(api: Endpoints, gateway: Gateway) -> None:
    """Serve conversations."""

    @api.serve("conversation", "list")
    async def list_conversations(request: ListConversations, message: Received) -> ConversationPage:
        """List conversations, newest first; `q` selects by a part of the title, or by id."""
        tenant, limit = tenant_of(message), request.limit
        return await resources.list_conversations(
            gateway, tenant, query=request.q, cursor=request.cursor, limit=limit
        )

    @api.serve("conversation", "read", "{conversation_id}", errors=(MISSING,))
    async def read_conversation(message: Received) -> Conversation:
        """Read a conversation, its open run and its open approval requests."""
        return await resources.read_conversation(gateway, tenant_of(message), named_by(message))

    @api.serve("conversation", "rename", "{conversation_id}", errors=(MISSING,))
    async def rename_conversation(request: Rename, message: Received) -> ConversationRecord:
        """Rename a conversation."""
        await gateway.requests.rename(caller_of(message), named_by(message), request.title)
        return await gateway.conversations.current(tenant_of(message), named_by(message))

    @api.serve("conversation", "title", "{conversation_id}", errors=(MISSING,))
    async def generate_title(message: Received) -> ConversationRecord:
        """Let a model write the title from the first exchange. A title that a user chose is not replaced."""
        return await gateway.titles.generate(caller_of(message), named_by(message))

    @api.serve("conversation", "import", errors=(ErrorCode.CONFLICT,))
    async def import_conversation(request: ExportedConversation, message: Received) -> ConversationRecord:
        """Create a conversation with the messages of an exported one; calls and files are not imported."""
        return await gateway.imports.create(caller_of(message), request, request_id_of(message))

    @api.serve("conversation", "delete", "{conversation_id}", errors=(MISSING,))
    async def delete_conversation(message: Received) -> Deleted:
        """Delete a conversation, and end its open runs."""
        await gateway.requests.delete(caller_of(message), named_by(message))
        return Deleted(id=named_by(message))


def add_runs(api: Endpoints, gateway: Gateway, replays: Replays) -> None:
    """Serve runs and events."""

    @api.serve("run", "list", "{conversation_id}", errors=(MISSING,))
    async def list_runs(message: Received) -> Listing[Run]:
        """List the runs of a conversation in the order of their requests, without their outcomes."""
        return await resources.list_runs(gateway, tenant_of(message), named_by(message))

    @api.serve("run", "read", "{run_id}", errors=(MISSING,))
    async def read_run(request: ReadRun, message: Received) -> EndedRun | Run:
        """Read a run, once it has ended or after `wait_s`."""
        return await resources.read_run(gateway, tenant_of(message), named_by(message), request.wait_s)

    @api.serve("run", "calls", "{run_id}", errors=(MISSING,))
    async def list_calls(request: ListCalls, message: Received) -> CallPage:
        """List all calls of a run that have a result, with complete parameters and results."""
        tenant, run_id = tenant_of(message), named_by(message)
        return await resources.list_calls(gateway, tenant, run_id, after=request.after, limit=request.limit)

    @api.serve("replay", "{conversation_id}", errors=(MISSING,))
    async def replay(request: Replay, message: Received) -> None:
        """Send the events to the reply subject, each as a frame; an empty message ends them."""
        await replays.send(request, message)


def add_pending(api: Endpoints, gateway: Gateway) -> None:
    """Serve open requests to users."""

    @api.serve("approval", "list")
    async def list_approvals(request: ListPending, message: Received) -> ApprovalPage:
        """List the open approval requests, oldest first."""
        caller = caller_of(message)
        return await resources.list_approvals(gateway, caller, limit=request.limit, after=request.after)

    @api.serve("approval", "aside", "{approval_id}", errors=(MISSING, CONFLICT, EARLY))
    async def set_approval_aside(message: Received) -> Deleted:
        """Remove an approval request from the inbox. The request stays open, and may be escalated."""
        await gateway.asides.set_aside(caller_of(message), named_by(message))
        return Deleted(id=named_by(message))

    @api.serve("input", "list")
    async def list_inputs(request: ListPending, message: Received) -> InputPage:
        """List the values that workflows wait for, oldest first."""
        tenant = tenant_of(message)
        return await resources.list_inputs(gateway, tenant, limit=request.limit, after=request.after)

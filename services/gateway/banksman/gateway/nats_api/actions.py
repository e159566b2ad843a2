"""The requests that are client frames: they change a conversation and are acknowledged."""

from __future__ import annotations

from banksman.bus.control_plane.control import Received
from banksman.contracts.errors import ErrorCode
from banksman.contracts.frames import (
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.gateway.nats_api.endpoints import Endpoints, caller_of
from banksman.gateway.service.gateway import Gateway

MISSING, CONFLICT, EARLY = ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.NOT_READY


def add_actions(api: Endpoints, gateway: Gateway) -> None:
    """Serve the frames."""

    @api.serve("conversation", "create", errors=(MISSING, CONFLICT, EARLY))
    async def create_conversation(frame: ConversationCreate, message: Received) -> Ack:
        """Create a conversation."""
        return await gateway.requests.handle(caller_of(message), frame)

    @api.serve("chat", "send", "{conversation_id}", errors=(MISSING, CONFLICT, EARLY))
    async def send_message(frame: ChatSend, message: Received) -> Ack:
        """Send a message of the user, which starts a run or steers the open one."""
        return await gateway.requests.handle(caller_of(message), frame)

    @api.serve("run", "cancel", "{conversation_id}", errors=(MISSING,))
    async def cancel_run(frame: RunCancel, message: Received) -> Ack:
        """Cancel a run."""
        return await gateway.requests.handle(caller_of(message), frame)

    @api.serve("approval", "reply", "{approval_id}", errors=(MISSING, CONFLICT, EARLY))
    async def decide_approval(frame: ApprovalDecision, message: Received) -> Ack:
        """Decide an approval request."""
        return await gateway.requests.handle(caller_of(message), frame)

    @api.serve("input", "reply", "{request_id}", errors=(MISSING, CONFLICT, EARLY))
    async def provide_input(frame: InputReply, message: Received) -> Ack:
        """Provide the value that a workflow requested."""
        return await gateway.requests.handle(caller_of(message), frame)

    @api.serve("workflow", "start", "{workflow}", errors=(MISSING, CONFLICT, EARLY))
    async def start_workflow(frame: WorkflowStart, message: Received) -> Ack:
        """Start a workflow."""
        return await gateway.requests.handle(caller_of(message), frame)

"""Checks of client requests that read no stored state."""

from __future__ import annotations

from banksman.contracts.errors import BadInput
from banksman.contracts.frames import (
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import conversation_of, conversation_of_approval
from banksman.contracts.messages import Content, TextPart

Request = ConversationCreate | ChatSend | RunCancel | ApprovalDecision | WorkflowStart | InputReply


def check_conversation(request: Request) -> None:
    """Check that the conversation of a frame's envelope is that of the frame's run, approval or input."""
    match request:
        case RunCancel():
            named = conversation_of(request.run_id)
        case ApprovalDecision():
            named = conversation_of_approval(request.approval_id)
        case InputReply():
            named = conversation_of_approval(request.request_id)
        case _:
            return
    given = request.conversation_id
    if named is not None and given not in (None, named):
        raise BadInput("conversation_id", given, f"{named!r}, the conversation of the other id, or nothing")


def check_content(content: Content) -> None:
    """Check that a message is not empty, because models refuse empty messages."""
    parts = (TextPart(text=content),) if isinstance(content, str) else content
    if not any(part.text.strip() if isinstance(part, TextPart) else True for part in parts):
        given = content if isinstance(content, str) else [part.model_dump() for part in content]
        raise BadInput("content", given, "text, an image or a file")

"""Replies that were paid for and are not acted on: their usage is recorded. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.events import EventBody, MessageCompleted
from banksman.contracts.messages import Usage
from banksman.runs.state import Conversation


@dataclass(frozen=True, slots=True)
class PaidReply:
    """What the vendor charges for a reply."""

    message_id: str
    model: str
    """The model that wrote the reply, as `provider:model`."""
    provider: str
    usage: Usage


def paid_events(state: Conversation, reply: PaidReply, text: str | None = None) -> tuple[EventBody, ...]:
    """Return the message of a reply that is not acted on; it records the usage, which the vendor charges."""
    if state.run is None:
        return ()
    message = MessageCompleted(
        message_id=reply.message_id,
        role="assistant",
        content=text,
        finish_reason="unknown",
        model=reply.model,
        protocol=state.run.settings.tool_protocol,
        provider=reply.provider,
        usage=reply.usage,
    )
    return (message,)


@dataclass(frozen=True, slots=True)
class PartialReply:
    """The text that was streamed before the run ended."""

    text: str
    message_id: str
    model: str
    """The model that was requested first, as `provider:model`."""
    usage: Usage
    """An estimate: vendors report the usage at the end of a reply."""


def partial_events(state: Conversation, reply: PartialReply) -> tuple[EventBody, ...]:
    """Return the streamed text as a message, once; nothing if no text was streamed."""
    # The broker may have stored a commit although it reported an error. The commit of this message leaves the
    # model request open, so the loop may build it again.
    stored = any(getattr(message, "message_id", None) == reply.message_id for message in state.history)
    if state.run is None or stored or not reply.text:
        return ()
    message = MessageCompleted(
        message_id=reply.message_id,
        role="assistant",
        content=reply.text,
        finish_reason="unknown",
        model=reply.model,
        protocol=state.run.settings.tool_protocol,
        usage=reply.usage,
        partial=True,
    )
    return (message,)

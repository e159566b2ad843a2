"""Acknowledgements that the stream sends directly to a runner or tool server.

Agents store the messages of runners and tool servers. The publisher names an acknowledgement subject in a
header, and the agent publishes the message with that reply subject. The server delivers the stream's reply to
both, and the agent replies only to refuse a message: six messages less per run of three calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import ACK, RUNNERS, kv_subject
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, TENANT_ACCOUNT


@asynccontextmanager
async def direct_acks(bus: Bus, server: str, tenant: str | None = None) -> AsyncGenerator[None]:
    """Receive direct acknowledgements while the context is open; `tenant` is None for account RUN."""
    inbox = new_id("")
    source, owner = (RUN_ACCOUNT, server) if tenant is None else (TENANT_ACCOUNT, tenant)
    # Prefixes of the subjects that agents store. A runner stores its own lease itself.
    relayed = ("tool.", kv_subject(RUNNERS, f"{server}."))

    async def request(subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float) -> Message:
        """Send a message to a stream and return the reply of the stream or an agent; as `Bus.request_ack`."""
        if not subject.startswith(relayed):
            return await bus.request_ack(subject, payload, headers, timeout_s)
        token = bus.replies.new_token()
        return await bus.replies.request(
            subject,
            payload,
            headers={**headers, ACK: f"{inbox}.{token}.only"},
            timeout_s=timeout_s,
            until_reconnect=True,
            token=token,
        )

    def received(message: Message) -> None:
        bus.replies.deliver(message.subject.split(".")[-3], message)

    subscription = await bus.listen(subjects.stored_ack(source, owner, inbox, ANY, ANY, ANY), received)
    bus.store_request = request
    try:
        yield
    finally:
        bus.store_request = bus.request_ack
        await subscription.unsubscribe()

"""Acknowledgements that the stream sends directly to a runner or tool server.

Agents store the messages of runners and tool servers. The publisher names an acknowledgement subject in a
header, and the agent publishes the message with that reply subject. The server delivers the stream's reply to
both, and the agent replies only to refuse a message: six messages less per run of three calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from banksman.bus.connection import Bus, BusSubscription
from banksman.bus.messages import Message
from banksman.bus.names import ACK, RUNNERS, kv_subject
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, TENANT_ACCOUNT


class DirectAcks:
    """The direct acknowledgements of one connection, received while this context manager is open."""

    def __init__(self, bus: Bus, server: str, tenant: str | None = None) -> None:
        """Create the direct acknowledgements; `tenant` is None for account RUN."""
        self._bus = bus
        self._inbox = new_id("")
        source, owner = (RUN_ACCOUNT, server) if tenant is None else (TENANT_ACCOUNT, tenant)
        self._subject = subjects.stored_ack(source, owner, self._inbox, ANY, ANY, ANY)
        self._relayed = ("tool.", kv_subject(RUNNERS, f"{server}."))
        """Prefixes of the subjects that agents store. A runner stores its own lease itself."""
        self._subscription: BusSubscription | None = None

    async def __aenter__(self) -> Self:
        self._subscription = await self._bus.listen(self._subject, self._received)
        self._bus.store_request = self._request
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._subscription is not None
        self._bus.store_request = self._bus.request_ack
        await self._subscription.unsubscribe()

    async def _request(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Message:
        """Send a message to a stream and return the reply of the stream or an agent; as `Bus.request_ack`."""
        if not subject.startswith(self._relayed):
            return await self._bus.request_ack(subject, payload, headers, timeout_s)
        token = self._bus.replies.new_token()
        return await self._bus.replies.request(
            subject,
            payload,
            headers={**headers, ACK: f"{self._inbox}.{token}.only"},
            timeout_s=timeout_s,
            until_reconnect=True,
            token=token,
        )

    def _received(self, message: Message) -> None:
        number = message.subject.split(".")[-3]
        self._bus.replies.deliver(number, message)

"""Acknowledgements that the stream sends directly to a runner or tool server.

Agents store the messages of runners and tool servers. The publisher names an acknowledgement subject in a
header, and the agent publishes the message with that reply subject. The server then delivers the stream's
reply to both, and the agent need not relay it.

This works with agents of older versions and with brokers with older permissions: until an acknowledgement has
arrived directly, each message also requests the agent's reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus, Subscription
from banksman.bus.errors import TimedOut
from banksman.bus.messages import Message
from banksman.bus.names import ACK, RUNNERS, kv_subject
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, TENANT_ACCOUNT


class DirectAcks:
    """The direct acknowledgements of one connection, received while this context manager is open."""

    def __init__(self, bus: Bus, server: str, tenant: str | None = None) -> None:
        """Create the direct acknowledgements.

        Args:
            bus: The connection, whose durable publishes use them while the block runs.
            server: The runner or tool server.
            tenant: The tenant of its account; None for account RUN.
        """
        self._bus = bus
        self._inbox = new_id("")
        source, owner = (RUN_ACCOUNT, server) if tenant is None else (TENANT_ACCOUNT, tenant)
        self._subject = subjects.stored_ack(source, owner, self._inbox, ANY, ANY, ANY)
        self._relayed = ("tool.", kv_subject(RUNNERS, f"{server}."))
        """Prefixes of the subjects that agents store. A runner stores its own lease itself."""
        self._proven = False
        """True after a direct acknowledgement, until a reconnect or a missing acknowledgement."""
        self._subscription: Subscription | None = None
        self._forget_reconnects: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        # A broker with older permissions refuses this subscription.
        self._subscription = await self._bus.listen(self._subject, self._received, optional=True)
        self._forget_reconnects = self._bus.on_reconnect(self._doubt)
        self._bus.store_request = self._request
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._subscription is not None and self._forget_reconnects is not None
        self._bus.store_request = self._bus.request_ack
        self._forget_reconnects()
        await self._subscription.unsubscribe()

    async def _request(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Message:
        """Send a message to a stream and return the reply of the stream or an agent; as `Bus.request_ack`."""
        if not subject.startswith(self._relayed):
            return await self._bus.request_ack(subject, payload, headers, timeout_s)
        token = self._bus.replies.new_token()
        address = f"{self._inbox}.{token}"
        try:
            return await self._bus.replies.request(
                subject,
                payload,
                headers={**headers, ACK: f"{address}.only" if self._proven else address},
                timeout_s=timeout_s,
                until_reconnect=True,
                token=token,
            )
        except TimedOut:
            # The permissions may have been replaced by older ones: the repeat also requests the reply.
            self._doubt()
            raise

    def _received(self, message: Message) -> None:
        self._proven = True
        number = message.subject.split(".")[-3]
        self._bus.replies.deliver(number, message)

    def _doubt(self) -> None:
        self._proven = False

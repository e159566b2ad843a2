"""Stores messages of runners and tool servers; JetStream acknowledges directly to the publisher if it can."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from banksman.agent.relayed_messages import Write
from banksman.bus.connection import Bus, BusSubscription
from banksman.bus.messages import Message
from banksman.bus.names import ACK
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.subjects import ANY

STORE_S: Final = 4.0
"""Seconds to wait for JetStream; less than the publisher waits for the reply."""


class AcknowledgedWrites:
    """Writes to streams; as a context manager it receives the acknowledgements.

    A publisher that names its inbox gets the acknowledgement of the stream on a subject that the server also
    delivers to this process, which must know when a write has ended. The publisher controls only its inbox
    and a number in this subject, so it cannot direct an acknowledgement to another publisher or into a
    stream.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._agent = new_id("")
        self._subscription: BusSubscription | None = None

    async def __aenter__(self) -> Self:
        subject = subjects.stored_ack(ANY, ANY, ANY, ANY, self._agent, ANY)
        self._subscription = await self._bus.listen(subject, self._received)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def store(self, message: Message, write: Write) -> bytes | None:
        """Store a checked message and return the stream's reply; None if the publisher does not wait for it.

        Raises:
            BadInput: The publisher named no inbox in the form of the header.
            Unavailable, Forbidden, MessageTooLarge: As `Replies.request`.
        """
        if ACK not in message.headers:
            stored = await self._bus.request_ack(write.subject, write.data, write.headers, STORE_S)
            return stored.data
        inbox, number, only = _address(message.headers[ACK])
        source = message.subject.split(".")[1]
        token = self._bus.replies.new_token()
        stored = await self._bus.replies.request(
            write.subject,
            write.data,
            headers=write.headers,
            timeout_s=STORE_S,
            until_reconnect=True,
            token=token,
            reply=subjects.stored_ack(source, write.publisher, inbox, number, self._agent, token),
        )
        return None if only else stored.data

    def _received(self, message: Message) -> None:
        self._bus.replies.deliver(message.subject.rpartition(".")[2], message)


def _address(text: str) -> tuple[str, str, bool]:
    """Return the inbox and the number that a publisher names, and whether it ignores any other reply."""
    match text.split("."):
        case [inbox, number, *rest] if rest in ([], ["only"]):
            return check_token(inbox, ACK), check_token(number, ACK), bool(rest)
        case _:
            raise BadInput(ACK, text[:80], "`{inbox}.{number}` or `{inbox}.{number}.only`")

"""The client of nats-py: with total parsing of headers, and with subscriptions that need no task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from banksman.bus.messages import Message
from banksman.bus.names import DESCRIPTION, STATUS

_VERSION = "NATS/1.0"
_BLANKS = " \t\r\n\v\f"
"""The blanks of bytes: `str.strip` removes others too, which are text."""


class SafeClient(Client):
    """A connection that survives the headers of every sender, and passes messages on without a task.

    nats-py raises on some blocks of headers, for example on a status that is not UTF-8, and then its reader
    ends: one such message would disconnect each process that receives it. The server checks no headers.

    nats-py gives each subscription a queue and a task, which cost more than most replies and notifications.
    """

    def __init__(self) -> None:
        super().__init__()
        self._receivers: dict[int, Callable[[Message], None]] = {}
        """By the id of their subscription."""

    async def listen(self, subject: str, receive: Callable[[Message], None]) -> Subscription:
        """Call `receive`, which must not block, for each message on arrival; its exceptions are reported."""
        # Before the server knows the subscription: nats-py counts its ids, and takes the next one at once.
        self._receivers[self._sid + 1] = receive
        return await self.subscribe(subject)  # pyright: ignore[reportUnknownMemberType] - as below

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        receive = self._receivers.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            receive(
                Message(subject.decode(), data, reply.decode(), parse_headers(headers) if headers else {})
            )
        except Exception as error:
            # Raised from here, it would end the reader of the connection.
            await self._error_cb(error)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._receivers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return (parse_headers(bytes(headers)) or None) if headers else None


def parse_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a message; of a repeated one the last, because the server appends its own.

    Accepts any bytes: what is not a header is skipped. The status in the first line becomes `Status` and
    `Description`, unless headers have these names.
    """
    # Decoded and split once: each process parses some hundred blocks for a run.
    first, *lines = block.decode("utf-8", "replace").split("\r\n")
    found: dict[str, str] = {}
    status, _, description = first.removeprefix(_VERSION).strip(_BLANKS).partition(" ")
    if status.isascii() and status.isdigit():
        found[STATUS] = status
        if description:
            found[DESCRIPTION] = description
    for line in lines:
        name, separator, value = line.partition(":")
        key = name.strip(_BLANKS)
        # One word: a key with a blank in it is no header.
        if separator and key.isascii() and key.split() == [key]:
            found[key] = value.strip(_BLANKS)
    return found


async def subscribe(
    nc: Client,
    subject: str,
    callback: Callable[[Msg], Awaitable[None]],
    *,
    queue: str = "",
    pending_messages: int = 524_288,
    pending_bytes: int = 128 * 1024 * 1024,
) -> Subscription:
    """Subscribe; the defaults are nats-py's own."""
    return await nc.subscribe(  # pyright: ignore[reportUnknownMemberType] - a bare Future in its signature
        subject,
        queue=queue,
        cb=callback,
        pending_msgs_limit=pending_messages,
        pending_bytes_limit=pending_bytes,
    )

"""Messages that a work queue still has although its consumer counts them as acknowledged.

nats-server writes an acknowledgement to the state of the consumer and the removal of the message to the
stream, in two files. If a crash, a power cut or damage loses the second write, the message is never delivered
again, and the server never removes it. It is queued again: a handler that has handled it acknowledges it,
and one that has not must not lose it.
"""

from __future__ import annotations

import asyncio
import logging

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import api
from banksman.bus.publish import durable
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 600.0
"""Seconds between two looks. A message that is above one still unacknowledged is found later."""


async def queue_kept_again(bus: Bus, queues: tuple[tuple[str, str], ...]) -> None:
    """Look for such messages of streams and consumers: at once, every ten minutes, after each reconnect."""
    reconnected = asyncio.Event()
    remove = bus.on_reconnect(reconnected.set)
    try:
        while True:
            reconnected.clear()
            for stream, consumer in queues:
                await _queue_again(bus, stream, consumer)
            await set_within(reconnected, LOOK_EVERY_S)
    finally:
        remove()


async def _queue_again(bus: Bus, stream: str, consumer: str) -> None:
    info = await jetstream.call(bus, api("CONSUMER.INFO", stream, consumer))
    subjects, acknowledged = str(info["config"]["filter_subject"]), int(info["ack_floor"]["stream_seq"])
    while message := await jetstream.next_message(bus, stream, subjects, after=0):
        if message.stream_seq > acknowledged:
            return
        logger.warning("%s: message %d was kept: it is queued again", message.subject, message.stream_seq)
        msg_id = f"kept:{stream}:{message.stream_seq}"
        headers = {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
        await durable(bus, message.subject, message.data, msg_id=msg_id, headers=headers)
        before = message.stream_seq + 1
        await jetstream.purge_subject(bus, stream, message.subject, before=before)

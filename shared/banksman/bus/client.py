"""The calls of nats-py whose types it leaves open, typed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription


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

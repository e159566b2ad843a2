"""The subscriptions of one websocket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from pydantic import BaseModel

from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.frames import (
    ApprovalsChanged,
    NotResumed,
    Resume,
    ResyncRequired,
    Subscribe,
    error_frame,
)
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.live.feed import ConversationFeed
from banksman.gateway.live.feeds import Feeds, PositionUnavailable
from banksman.gateway.live.send_buffer import Outbox
from banksman.gateway.operation.caller import Caller

logger = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS = 200


class SocketSubscriptions:
    """The feeds of one websocket, one for each conversation."""

    def __init__(
        self,
        feeds: Feeds,
        pending: PendingApprovals,
        outbox: Outbox,
        *,
        send: Callable[[BaseModel], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`send` queues a control frame; `spawn` runs a task for as long as the websocket is open."""
        self._opener = feeds
        self._pending = pending
        self._outbox = outbox
        self._send = send
        self._spawn = spawn
        self._feeds: dict[str, ConversationFeed] = {}
        self._approvals_of: str | None = None
        """The tenant whose approval requests are followed; None if they are not followed."""

    async def subscribe(self, caller: Caller, frame: Subscribe) -> None:
        """Start a feed, or send `resync_required` if its position is unavailable."""
        try:
            feed = await self.open(caller, frame)
        except PositionUnavailable as error:
            resync = ResyncRequired(
                reply_to=frame.id,
                conversation_id=error.conversation_id,
                oldest_seq=error.oldest_seq,
                reason=error.reason,
            )
            self._send(resync)
            return
        await self.start(feed, frame.id)

    async def open(self, caller: Caller, wanted: Subscribe | Resume) -> ConversationFeed:
        """Return a feed that is not started yet.

        Raises:
            BadInput: The websocket has too many subscriptions.
            NotFound: The tenant has no such conversation.
            PositionUnavailable: The events after the position cannot be sent.
        """
        if wanted.conversation_id not in self._feeds and len(self._feeds) >= MAX_SUBSCRIPTIONS:
            raise BadInput(
                "conversation_id", wanted.conversation_id, f"at most {MAX_SUBSCRIPTIONS} subscriptions"
            )
        return await self._opener.open(
            caller,
            wanted.conversation_id,
            after_seq=wanted.after_seq,
            log_epoch=wanted.log_epoch,
            detail=wanted.detail,
            sink=self._outbox,
        )

    async def resume(
        self, caller: Caller, positions: Iterable[Resume]
    ) -> tuple[list[ConversationFeed], tuple[NotResumed, ...]]:
        """Return the feeds from the given positions, not started yet, and the positions without a feed."""
        feeds: list[ConversationFeed] = []
        not_resumed: list[NotResumed] = []
        for position in positions:
            try:
                feeds.append(await self.open(caller, position))
            except (BanksmanError, PositionUnavailable) as error:
                not_resumed.append(NotResumed(conversation_id=position.conversation_id, reason=str(error)))
        return feeds, tuple(not_resumed)

    async def start(self, feed: ConversationFeed, reply_to: str | None, *, quiet: bool = False) -> None:
        """Send the events of a feed, in place of an earlier feed of its conversation.

        Args:
            feed: The feed.
            reply_to: The id of the request to which it is the reply.
            quiet: True sends neither `subscribed` nor `replay.done`.
        """
        await self.unsubscribe(feed.conversation_id)
        self._feeds[feed.conversation_id] = feed
        if not quiet:
            self._send(feed.head.model_copy(update={"reply_to": reply_to}))
        if damage := self._opener.damage(feed):
            self._send(error_frame(damage))
        self._spawn(self._follow(feed, quiet))

    async def unsubscribe(self, conversation_id: str) -> None:
        if feed := self._feeds.pop(conversation_id, None):
            await feed.close()

    async def follow_approvals(self, caller: Caller) -> None:
        """Send `approvals.changed` whenever the open approval requests of the tenant may have changed."""
        if self._approvals_of is None:
            self._approvals_of = caller.tenant
            await self._pending.follow(caller.tenant, self._approvals_changed)

    def _approvals_changed(self) -> None:
        self._send(ApprovalsChanged())

    async def close(self) -> None:
        if self._approvals_of is not None:
            await self._pending.leave(self._approvals_of, self._approvals_changed)
        for feed in self._feeds.values():
            await feed.close()

    async def _follow(self, feed: ConversationFeed, quiet: bool) -> None:
        try:
            await feed.follow(quiet=quiet)
        except BanksmanError as error:
            logger.warning("%s could not be followed: %s", feed.conversation_id, error)
            self._send(error_frame(error))
        finally:
            # Another subscription may have replaced this feed while it was reading.
            if self._feeds.get(feed.conversation_id) is not feed:
                await feed.close()

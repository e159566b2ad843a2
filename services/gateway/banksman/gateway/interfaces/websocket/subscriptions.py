"""The subscriptions of one websocket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from banksman.contracts import frames
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.live.feed import ConversationFeed
from banksman.gateway.live.feeds import Feeds, PositionUnavailable
from banksman.gateway.live.send_buffer import Outbox
from banksman.gateway.operation.caller import Caller

logger = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS = 200


@dataclass(eq=False, slots=True)
class SocketSubscriptions:
    feeds: Feeds
    pending: PendingApprovals
    outbox: Outbox
    send: Callable[[BaseModel], None]
    """Queues a control frame."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a task for as long as the websocket is open."""
    _open: dict[str, ConversationFeed] = field(default_factory=dict[str, ConversationFeed])
    _approvals_of: str | None = None
    """The tenant whose approval requests are followed; None if they are not followed."""

    async def subscribe(self, caller: Caller, frame: frames.Subscribe) -> None:
        """Start a feed, or send `resync_required` if its position is unavailable."""
        try:
            feed = await self.open(caller, frame)
        except PositionUnavailable as error:
            self.send(error.frame.model_copy(update={"reply_to": frame.id}))
            return
        await self.start(feed, frame.id)

    async def open(self, caller: Caller, wanted: frames.Subscribe | frames.Resume) -> ConversationFeed:
        """Return a feed that is not started; raise `BadInput` if the websocket has too many subscriptions."""
        self.check(wanted.conversation_id)
        feed = await self.feeds.open(
            caller,
            wanted.conversation_id,
            after_seq=wanted.after_seq,
            log_epoch=wanted.log_epoch,
            newest_runs=wanted.newest_runs if isinstance(wanted, frames.Subscribe) else None,
            detail=wanted.detail,
            sink=self.outbox,
        )
        # Requests of other conversations may have opened theirs meanwhile.
        self.check(wanted.conversation_id)
        return feed

    def check(self, conversation_id: str | None) -> None:
        """Raise `BadInput` if a subscription of a conversation, or of a new one, would be one too many."""
        if conversation_id not in self._open and len(self._open) >= MAX_SUBSCRIPTIONS:
            raise BadInput("conversation_id", conversation_id, f"at most {MAX_SUBSCRIPTIONS} subscriptions")

    async def resume(
        self, caller: Caller, positions: Iterable[frames.Resume]
    ) -> tuple[list[ConversationFeed], tuple[frames.NotResumed, ...]]:
        """Return the feeds from the given positions, not started yet, and the positions without a feed."""
        feeds: list[ConversationFeed] = []
        not_resumed: list[frames.NotResumed] = []
        for position in positions:
            try:
                feeds.append(await self.open(caller, position))
            except (BanksmanError, PositionUnavailable) as error:
                not_resumed.append(
                    frames.NotResumed(conversation_id=position.conversation_id, reason=str(error))
                )
        return feeds, tuple(not_resumed)

    async def start(self, feed: ConversationFeed, reply_to: str | None, *, quiet: bool = False) -> None:
        """Send the events of a feed; `quiet` sends neither `subscribed` nor `replay.done`."""
        await self.unsubscribe(feed.conversation_id)
        self._open[feed.conversation_id] = feed
        if not quiet:
            self.send(feed.head.model_copy(update={"reply_to": reply_to}))
        if damage := self.feeds.views.damage(feed.tenant, feed.conversation_id):
            self.send(frames.error_frame(damage))
        self.spawn(self._follow(feed, quiet))

    async def unsubscribe(self, conversation_id: str) -> None:
        if feed := self._open.pop(conversation_id, None):
            await feed.close()

    def act_as(self, caller: Caller) -> None:
        """Continue the subscriptions as another user, and end those that this one may not have."""
        for feed in self._open.values():
            feed.caller = caller
            feed.end_if_hidden()

    async def follow_approvals(self, caller: Caller) -> None:
        """Send `approvals.changed` whenever the open approval requests of the tenant may have changed."""
        if self._approvals_of is None:
            self._approvals_of = caller.tenant
            await self.pending.follow(caller.tenant, self._approvals_changed)

    def _approvals_changed(self) -> None:
        self.send(frames.ApprovalsChanged())

    async def close(self) -> None:
        if self._approvals_of is not None:
            await self.pending.leave(self._approvals_of, self._approvals_changed)
        for feed in self._open.values():
            await feed.close()

    async def _follow(self, feed: ConversationFeed, quiet: bool) -> None:
        try:
            await feed.follow(quiet=quiet)
        except BanksmanError as error:
            logger.warning("%s could not be followed: %s", feed.conversation_id, error)
            self.send(frames.error_frame(error))
        finally:
            # Another subscription may have replaced this feed while it was reading.
            if self._open.get(feed.conversation_id) is not feed:
                await feed.close()

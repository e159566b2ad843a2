"""Follow the logs of thousands of conversations on one connection, without missing a commit.

The server republishes each commit when it is stored, and may lose it on the way. A lost commit shows as a
gap, because each commit names its predecessor. A lost *last* commit shows no gap. Therefore a log is compared
with the stream after a gap, after a reconnect, soon after it is opened, and from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from banksman.bus import jetstream
from banksman.bus.messages import BusSubscription, Message
from banksman.bus.storage.log import EventLog, StoredCommit, stored_commit
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Poison
from banksman.runtime.scope import Scoped

logger = logging.getLogger(__name__)

CHECK_S = 20.0
"""Seconds between comparisons with the stream while the conversation's run has an owner."""
IDLE_CHECKS = 6
"""Factor by which a log without an owner is compared less often."""
FIRST_CHECK_S = 1.0
"""Seconds from the opening of a log to its first comparison: in a cluster, a new subscription takes a moment
to reach the server that forwards commits."""
EARLY_COMMITS, EARLY_BYTES = 1_024, 4 * 1024 * 1024
"""Maximum number and bytes of commits that wait while their log is read; further ones are read from it."""
CHECKS_AT_ONCE = 32
"""Maximum number of concurrent comparisons."""

OnCommit = Callable[[StoredCommit], None]
"""Receives commits in order, without gaps or repeats; must not block."""


@dataclass(eq=False)
class Following:
    on_commit: OnCommit
    position: int
    """Stream sequence of the last commit that it received."""
    channel: _Channel = field(repr=False)
    closed: bool = False

    async def close(self) -> None:
        """Stop following, also while disconnected. The last follower of a conversation unsubscribes it."""
        self.closed = True
        await self.channel.leave(self)


class LiveHub(Scoped):
    """Follows conversations for many clients: one core subscription for each open conversation.

    As a context manager it runs the comparisons in the background.
    """

    def __init__(
        self, log: EventLog, *, check_s: float = CHECK_S, first_check_s: float = FIRST_CHECK_S
    ) -> None:
        self.log = log
        self.check_s = check_s
        self.first_check_s = first_check_s
        self.channels: dict[str, _Channel] = {}
        """The followed conversations, by the subject of their commits."""
        self._suspects: set[_Channel] = set()
        self._suspected = asyncio.Event()
        self._opened = asyncio.Event()
        """Set when the first conversation is followed; before that, there is nothing to compare."""

    async def _enter(self, scope: AsyncExitStack) -> None:
        scope.push_async_callback(self._close_all)
        scope.callback(self.log.bus.on_reconnect(lambda: self.suspect(*self.channels.values())))
        task = self.log.bus.background.repeat("live", self._check_due, wait=self._wait)
        scope.push_async_callback(task.stop)

    async def _close_all(self) -> None:
        for channel in tuple(self.channels.values()):
            await channel.close()
        self.channels.clear()

    async def follow(
        self, tenant: str, conversation_id: str, *, after_stream_seq: int, on_commit: OnCommit
    ) -> Following:
        """Pass the stored commits after `after_stream_seq` to `on_commit`, then each new one.

        When this returns, `on_commit` has received every commit that was stored at the call.

        Raises:
            LogBroken: A commit is missing from the log.
        """
        subject = subjects.live(tenant, conversation_id)
        channel = self.channels.get(subject)
        if channel is None:
            channel = self.channels[subject] = _Channel(self, subject, tenant, conversation_id)
            if len(self.channels) == 1:
                self._opened.set()
        return await channel.join(after_stream_seq, on_commit)

    @asynccontextmanager
    async def tail(
        self, tenant: str, conversation_id: str, *, after_stream_seq: int = 0
    ) -> AsyncGenerator[AsyncGenerator[StoredCommit]]:
        """Return the stored and future commits of one conversation as an endless iterator."""
        queue: asyncio.Queue[StoredCommit] = asyncio.Queue()
        following = await self.follow(
            tenant, conversation_id, after_stream_seq=after_stream_seq, on_commit=queue.put_nowait
        )

        async def commits() -> AsyncGenerator[StoredCommit]:
            while True:
                yield await queue.get()

        try:
            yield commits()
        finally:
            await following.close()

    def forget(self, channel: _Channel) -> None:
        if self.channels.get(channel.subject) is channel:
            del self.channels[channel.subject]
        self._suspects.discard(channel)

    def suspect(self, *channels: _Channel) -> None:
        """Compare channels with the stream as soon as possible."""
        self._suspects.update(channels)
        self._suspected.set()

    async def _wait(self) -> None:
        while not self.channels:
            self._opened.clear()
            await self._opened.wait()
        now = asyncio.get_running_loop().time()
        wake_at = min((channel.due for channel in self.channels.values()), default=now + self.check_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(wake_at, now + self.first_check_s)):
                await self._suspected.wait()

    async def _check_due(self) -> None:
        await self.log.bus.wait_connected()
        now = asyncio.get_running_loop().time()
        due = self._suspects | {channel for channel in self.channels.values() if channel.due <= now}
        self._suspects.clear()
        self._suspected.clear()
        limit = asyncio.Semaphore(CHECKS_AT_ONCE)

        async def check(channel: _Channel) -> None:
            async with limit:
                await channel.check()

        async with asyncio.TaskGroup() as tasks:
            for channel in due:
                tasks.create_task(check(channel))


class _Channel:
    def __init__(self, hub: LiveHub, subject: str, tenant: str, conversation_id: str) -> None:
        self.subject = subject
        self.due = asyncio.get_running_loop().time() + hub.first_check_s
        self._hub = hub
        self._tenant = tenant
        self._conversation_id = conversation_id
        self._followings: list[Following] = []
        self._subscription: BusSubscription | None = None
        self._owned = True
        # Keeps the order: while a reader holds it, arriving commits wait in `_early`.
        self._turn = asyncio.Lock()
        self._early: list[Message] = []

    async def join(self, after: int, on_commit: OnCommit) -> Following:
        following = Following(on_commit, after, self)
        self._followings.append(following)  # before any await: the channel now stays open
        async with self._reading():
            try:
                if self._subscription is None:
                    self._subscription = await self._hub.log.bus.listen(self.subject, self._received)
                await self._catch_up(following)
            except BaseException:
                await self.leave(following)
                raise
        return following

    async def leave(self, following: Following) -> None:
        # Without `_turn`: another task may hold it while it waits for the broker.
        if following in self._followings:
            self._followings.remove(following)
        if not self._followings and (subscription := self._subscription) is not None:
            self._subscription = None
            self._hub.forget(self)
            await subscription.unsubscribe()

    async def close(self) -> None:
        if self._subscription:
            await self._subscription.unsubscribe()

    async def check(self) -> None:
        """Compare with the stream, and deliver the commits that did not arrive."""
        self._check_in(self._hub.check_s if self._owned else self._hub.check_s * IDLE_CHECKS)
        try:
            async with self._reading():
                if not self._followings:
                    return
                position = min(following.position for following in self._followings)
                if await self._hub.log.more(self._tenant, self._conversation_id, after=position):
                    logger.info("%s: a commit after %d did not arrive; reading it", self.subject, position)
                    await self._catch_up_all()
        except Exception as error:
            # One conversation that fails must not keep the hub from comparing the others.
            unforeseen = None if isinstance(error, BanksmanError) else error
            logger.warning(
                "%s: could not be compared with its log: %s", self.subject, error, exc_info=unforeseen
            )
            self._check_in(self._hub.first_check_s)

    def _check_in(self, seconds: float) -> None:
        self.due = asyncio.get_running_loop().time() + seconds

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[None]:
        """Hold back the commits that arrive while the block reads the log, and deliver them afterwards."""
        async with self._turn:
            try:
                yield
            finally:
                early, self._early = self._early, []
                for message in early:
                    self._take(message)

    def _received(self, message: Message) -> None:
        if not self._turn.locked():
            self._take(message)
        elif self._has_room(message):
            self._early.append(message)
        else:
            self._hub.suspect(self)

    def _has_room(self, message: Message) -> bool:
        size = len(message.data) + sum(len(early.data) for early in self._early)
        return len(self._early) < EARLY_COMMITS and size <= EARLY_BYTES

    def _take(self, message: Message) -> None:
        """Deliver a commit to the followers whose next one it is; a gap is read by the comparison."""
        try:
            stored = stored_commit(jetstream.republished(message))
        except (Poison, KeyError, ValueError) as error:
            logger.warning("%s: a commit could not be delivered: %s", self.subject, error)
            self._hub.suspect(self)
            return
        for following in tuple(self._followings):
            if stored.prev == following.position:
                self._deliver(following, stored)
            elif stored.stream_seq > following.position:
                self._hub.suspect(self)

    async def _catch_up_all(self) -> None:
        for following in tuple(self._followings):
            await self._catch_up(following, leader=True)

    async def _catch_up(self, following: Following, *, leader: bool = False) -> None:
        for stored in await self._hub.log.read(
            self._tenant, self._conversation_id, after=following.position, leader=leader
        ):
            self._deliver(following, stored)

    def _deliver(self, following: Following, stored: StoredCommit) -> None:
        if following.closed:
            return
        following.position = stored.stream_seq
        self._owned = stored.commit.owner is not None
        try:
            following.on_commit(stored)
        except Exception:
            logger.exception("%s: the callback of a follower failed", self.subject)

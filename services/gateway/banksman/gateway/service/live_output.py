"""What is not stored of a conversation: deltas, and what running tools write. Lost when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError

from banksman.bus.connection import Bus, Subscription
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.calls import CallProgress, Delta

PENDING_DELTAS = 4_096
"""Deltas of one conversation that may wait in this process."""


class LossyFeed(Protocol):
    """Who is shown it."""

    @property
    def shows_progress(self) -> bool:
        """Whether it wants to know of running tools."""
        ...

    def take(self, lossy: Delta | CallProgress) -> None:
        """Show a piece of a message, or what a running tool does."""
        ...


@dataclass(eq=False)
class LossyChannel:
    """The core subjects of one conversation: deltas, and running output when somebody wants it."""

    bus: Bus
    tenant: str
    conversation_id: str
    feeds: set[LossyFeed] = field(default_factory=set[LossyFeed])
    _open: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    # Opening and closing wait for the server; two at once would subscribe twice.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def key(self) -> tuple[str, str]:
        """Tenant and conversation."""
        return self.tenant, self.conversation_id

    async def listen(self) -> None:
        """Subscribe to what the feeds want now, and to nothing else."""
        async with self._turn:
            await self._keep(bool(self.feeds), subjects.delta(*self.key), self._delta)
            wanted = any(feed.shows_progress for feed in self.feeds)
            await self._keep(wanted, subjects.tool_progress(*self.key), self._progress)

    async def _keep(self, wanted: bool, subject: str, received: Callable[[Message], Any]) -> None:
        if wanted and subject not in self._open:
            self._open[subject] = await self.bus.subscribe(
                subject, received, pending_messages=PENDING_DELTAS, pending_bytes=4 * 1024 * 1024
            )
        elif not wanted and subject in self._open:
            await self._open.pop(subject).unsubscribe()

    async def _delta(self, message: Message) -> None:
        with contextlib.suppress(ValidationError):
            delta = Delta.model_validate_json(message.data)
            for feed in tuple(self.feeds):
                feed.take(delta)

    async def _progress(self, message: Message) -> None:
        with contextlib.suppress(ValidationError):
            progress = CallProgress.model_validate_json(message.data)
            for feed in tuple(self.feeds):
                if feed.shows_progress:
                    feed.take(progress)

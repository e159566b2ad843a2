"""The ports of an agent, over the bus."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus, Subscription
from banksman.bus.live import LiveHub
from banksman.bus.log import StoredCommit
from banksman.bus.messages import Message
from banksman.bus.publish import durable
from banksman.bus.slots import ApprovalSlots, CallSlots, StoredFact, watch_results
from banksman.bus.timers import set_timer
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallStarted
from banksman.contracts.errors import Poison
from banksman.contracts.work import ApprovalReply, ApprovalRequest, ResumeRun, StartRun
from banksman.runs.folded_log import FoldedLog
from banksman.runs.ports import Clock, Facts
from banksman.runs.state import Conversation
from banksman.runtime.failpoints import reach

KEPT_ATTEMPTS = 20_000
"""Attempts whose starts and results a process listens for; of others it reads the slots."""

APPROVAL_TIMER = "approval"
"""Kind of the timers that expire approvals."""

ANSWERED_TIMER = "answered"
"""Kind of the timers that remove approvals which were answered."""

KEPT_ANSWERED_S = 86_400.0
"""Seconds beyond its expiry that an approval and its answer are kept, to tell those who answer late."""


class StoredSlots:
    """The write-once slots of attempts."""

    def __init__(self, slots: CallSlots) -> None:
        self._slots = slots

    async def put_started(self, tenant: str, started: CallStarted) -> CallStarted:
        """Store a start unless one is stored; return what the slot holds."""
        placed = await self._slots.put_started(tenant, started)
        return placed.stored or started

    async def put_result(self, tenant: str, finished: CallFinished) -> CallFinished:
        """Store a result unless one is stored; return what the slot holds."""
        placed = await self._slots.put_result(tenant, finished)
        return placed.stored or finished

    async def read(self, tenant: str, attempt: str) -> Facts:
        """Both slots, read from the leader."""
        stored = await self._slots.facts(tenant, attempt)
        return Facts(stored.started, stored.result)

    async def forget(self, tenant: str, attempts: tuple[str, ...]) -> None:
        """Delete both slots of attempts whose results are committed."""
        await self._slots.forget(tenant, attempts)


class StoredApprovals:
    """The two slots of an approval, and its timer."""

    def __init__(self, bus: Bus, slots: ApprovalSlots) -> None:
        self._bus = bus
        self._slots = slots

    async def ask(self, request: ApprovalRequest) -> None:
        """Store the question and schedule its expiry, both once."""
        await reach("agent.before_question")
        await self._slots.request(request)
        await set_timer(
            self._bus,
            APPROVAL_TIMER,
            request.tenant,
            request.approval_id,
            at=request.expires_at,
            payload=request.model_dump_json(include={"tenant", "conversation_id", "approval_id"}).encode(),
        )

    async def settle(self, reply: ApprovalReply) -> ApprovalReply:
        """Store an answer unless one is stored; return what the slot holds."""
        return await self._slots.reply(reply)

    async def forget(self, tenant: str, approval_id: str) -> None:
        """Remove a question and its answer."""
        await self._slots.forget(tenant, approval_id)

    async def look_again(self, tenant: str, approval_id: str, payload: bytes, *, at: datetime) -> None:
        """Schedule the moment to see whether an approval may be removed."""
        await set_timer(self._bus, ANSWERED_TIMER, tenant, approval_id, at=at, payload=payload)

    async def discard(self, reply: ApprovalReply, reason: str) -> None:
        """Keep an invalid answer as a dead letter and empty its slot, unless that holds another by now."""
        await self._slots.refuse(reply, reason)


class StoredWork:
    """The queue of runs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(self, work: StartRun | ResumeRun) -> None:
        """Store a work message under its fixed id."""
        msg_id = f"start:{work.run_id}" if isinstance(work, StartRun) else f"resume:{work.cause}"
        subject = subjects.run_work(work.tenant, work.conversation_id)
        await durable(self._bus, subject, work.model_dump_json(by_alias=True).encode(), msg_id=msg_id)

    async def nudge(self, tenant: str, conversation_id: str) -> None:
        """Wake the owner, best effort."""
        await self._bus.publish(subjects.cancel_hint(tenant, conversation_id), b"")


@dataclass
class _Driven:
    """A conversation that this process drives."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    drivers: int = 0
    """More than one while a fenced owner of this process has not noticed its successor here."""


class Watch:
    """What reaches the owners in this process while they wait: stored starts and results, commits, nudges.

    As a context manager it listens; everything it hears may also be lost, so owners look again by themselves.
    """

    def __init__(self, bus: Bus, hub: LiveHub, log: FoldedLog, clock: Clock) -> None:
        self._bus = bus
        self._hub = hub
        self._log = log
        self._clock = clock
        self._driven: dict[tuple[str, str], _Driven] = {}
        self._facts: OrderedDict[tuple[str, str], Facts] = OrderedDict()
        """By tenant and attempt: servers of a tenant may store what they like, under its own name."""
        self._subscriptions: tuple[Subscription, ...] = ()

    async def __aenter__(self) -> Self:
        nudges = await self._bus.subscribe(subjects.cancel_hint(subjects.ANY, subjects.ANY), self._nudged)
        self._subscriptions = (*await watch_results(self._bus, self._stored), nudges)
        self._bus.on_reconnect(self._wake_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    @asynccontextmanager
    async def driving(self, state: Conversation) -> AsyncGenerator[None]:
        """Listen for one conversation while the context is open."""
        key = (state.tenant, state.conversation_id)
        driven = self._driven.setdefault(key, _Driven())
        driven.drivers += 1

        def on_commit(stored: StoredCommit) -> None:
            if stored.stream_seq > self._log.at_hand(*key).stream_seq:
                driven.news.set()

        try:
            following = await self._hub.follow(*key, after_stream_seq=state.stream_seq, on_commit=on_commit)
            try:
                yield
            finally:
                await following.close()
        finally:
            driven.drivers -= 1
            if not driven.drivers:
                del self._driven[key]

    def facts(self, tenant: str, attempt: str) -> Facts:
        """What was seen of an attempt's slots since it was first asked for here."""
        key = (tenant, attempt)
        seen = self._facts.setdefault(key, Facts())
        self._facts.move_to_end(key)
        if len(self._facts) > KEPT_ATTEMPTS:
            self._facts.popitem(last=False)
        return seen

    async def wait(self, tenant: str, conversation_id: str, until: datetime) -> None:
        """Return when anything about the conversation was stored since the last call, or at `until`."""
        driven = self._driven[(tenant, conversation_id)]
        seconds = max(0.0, (until - self._clock.now()).total_seconds())
        try:
            async with asyncio.timeout(seconds):
                await driven.news.wait()
        except TimeoutError:
            pass
        driven.news.clear()

    async def _stored(self, fact: StoredFact) -> None:
        key = (fact.tenant, fact.attempt)
        if key not in self._facts:
            return
        try:
            value = fact.decode()
        except Poison:
            return
        seen = self._facts[key]
        if isinstance(value, CallStarted):
            self._facts[key] = Facts(value, seen.finished)
        else:
            self._facts[key] = Facts(seen.started, value)
        driven = self._driven.get((fact.tenant, value.conversation_id))
        if driven is not None:
            driven.news.set()

    async def _nudged(self, message: Message) -> None:
        _, tenant, conversation_id = message.subject.split(".")
        driven = self._driven.get((tenant, conversation_id))
        if driven is not None:
            driven.news.set()

    def _wake_all(self) -> None:
        for driven in self._driven.values():
            driven.news.set()

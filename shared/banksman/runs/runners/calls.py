"""The runner's side of a call: admit it once, start it at most once, store its one result."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from banksman.bus.connection import Bus
from banksman.bus.dead import store_late_result
from banksman.bus.storage.slots import CallSlots
from banksman.contracts.calls import CallFinished, CallReply, CallRequest, CallStarted, LateResult
from banksman.contracts.errors import BanksmanError, Refused, Unavailable
from banksman.contracts.tools import ToolResult
from banksman.quotas.places import Shares
from banksman.runtime.failpoints import reach

logger = logging.getLogger(__name__)

REMEMBERED_ATTEMPTS = 100_000
"""Ended attempts whose ids a runner remembers, so that a request that arrives late is not executed again."""
_RETRY_S = 0.5


class RunnerSlots(Protocol):
    """The slots as a runner may use them: it writes them and never reads them."""

    async def start(self, tenant: str, started: CallStarted) -> bool: ...

    async def finish(self, tenant: str, finished: CallFinished) -> bool:
        """Store the result, and retry while the broker is away; return False if another one is stored."""
        ...


Execute = Callable[[CallRequest], Awaitable[ToolResult]]
Note = Callable[[LateResult], Awaitable[None]]


def attempt_key(request: CallRequest) -> str:
    """Return the key of an attempt. Ids of calls are unique only within their tenant."""
    return f"{request.tenant}.{request.attempt}"


@dataclass
class RunnerCalls:
    runner: str
    runner_epoch: int
    slots: RunnerSlots
    capacity: Shares
    """Calls admitted at a time, running and waiting; further requests get `busy`."""
    now: Callable[[], datetime]
    may_start: Callable[[], bool]
    """False when the lease was not renewed in time: then no call starts."""
    may_repeat: Callable[[CallRequest], bool]
    """Whether the tool is idempotent, by its own definition. The request is not trusted with this."""
    fits: Callable[[CallRequest], bool] = field(default=lambda _: True)
    """False when the workspace moved after the request was made."""
    began: Callable[[], None] = field(default=lambda: None)
    """Called when a call is admitted."""
    note: Note | None = None
    """Stores the result of a call for which another result was stored first; None to drop it."""
    active: set[str] = field(default_factory=set[str])
    """Keys of the attempts that are admitted and have not ended."""
    ended: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    """Keys of the last `REMEMBERED_ATTEMPTS` attempts that this process never starts again."""

    def admit(self, request: CallRequest) -> tuple[CallReply, bool]:
        """Return the reply, and whether the caller must now `perform` the call: once for each attempt."""
        if request.runner_epoch != self.runner_epoch:
            return CallReply(answer="wrong_epoch"), False
        attempt = attempt_key(request)
        if attempt in self.active:
            return CallReply(answer="accepted"), False
        if attempt in self.ended:
            return CallReply(answer="done"), False
        if request.digest != request.call.digest:
            return CallReply(answer="refused", reason="The call is not the one that was approved."), False
        if not self.may_start() or not self.capacity.allows(request.tenant):
            return CallReply(answer="busy"), False
        if not self.fits(request):
            return CallReply(answer="wrong_epoch"), False
        self.active.add(attempt)
        self.capacity.take(request.tenant)
        self.began()
        return CallReply(answer="accepted"), True

    async def perform(self, request: CallRequest, execute: Execute) -> None:
        """Execute an admitted call when it is its turn.

        An idempotent call starts without a record. Any other starts only if this process stored its start.
        """
        try:
            if not self.may_start():
                return
            if self.may_repeat(request):
                await self._finish(request, await execute(request))
                self._remember(attempt_key(request))
                return
            start = CallStarted(
                conversation_id=request.conversation_id,
                attempt=request.attempt,
                runner=self.runner,
                runner_epoch=self.runner_epoch,
                ts=self.now(),
                ticket=request.ticket,
            )
            started = await self.slots.start(request.tenant, start)
            # Remembered even if the execution fails: a repeated write of the start may look like a new start.
            # A call whose start could not be stored (no lease, no broker) may be admitted again.
            self._remember(attempt_key(request))
            if started:
                await self._finish(request, await execute(request))
        finally:
            self.release(request)

    def release(self, request: CallRequest) -> None:
        """Forget that a call was admitted, so that a repeated request admits it again."""
        attempt = attempt_key(request)
        if attempt in self.active:
            self.active.remove(attempt)
            self.capacity.give_back(request.tenant)

    async def _finish(self, request: CallRequest, result: ToolResult) -> None:
        finished = CallFinished(
            conversation_id=request.conversation_id,
            attempt=request.attempt,
            result=result,
            ticket=request.ticket,
        )
        stored = await self.slots.finish(request.tenant, finished)
        # An idempotent call may run several times, and all results but the first are late. They change
        # nothing.
        if not stored and self.note is not None and not self.may_repeat(request):
            await self.note(self._late(request, result))

    def _late(self, request: CallRequest, result: ToolResult) -> LateResult:
        return LateResult(
            tenant=request.tenant,
            conversation_id=request.conversation_id,
            run_id=request.run_id,
            attempt=request.attempt,
            tool=request.call.name,
            digest=request.digest,
            runner=self.runner,
            runner_epoch=self.runner_epoch,
            ended_at=self.now(),
            result=result,
            ticket=request.ticket,
        )

    def _remember(self, attempt: str) -> None:
        self.ended[attempt] = None
        if len(self.ended) > REMEMBERED_ATTEMPTS:
            self.ended.popitem(last=False)


class LeasedSlots:
    """Writes the slots of calls while the lease holds. Fixed message ids make a repeated write safe."""

    def __init__(self, slots: CallSlots, *, runner_epoch: int, holds: Callable[[], bool]) -> None:
        self._slots = slots
        self._runner_epoch = runner_epoch
        self._holds = holds

    async def start(self, tenant: str, started: CallStarted) -> bool:
        """Store the start; return True only if this invocation stored it, and not an earlier one.

        The write is retried while the broker is unavailable. If this process gave up after a write that
        stored the start, the call would never run. Raises `Refused` if it is unknown whether the start is
        stored, and the lease is lost: the call must not run.
        """
        await reach("runner.before_claim")
        may_be_stored = False
        while True:
            try:
                written = await self._slots.store_started(tenant, started)
                await reach("runner.after_claim")
                return written.fresh or (may_be_stored and not written.taken)
            except Refused as refused:
                may_be_stored = may_be_stored or isinstance(refused, Unavailable)
                await self._pause(started.attempt, refused)

    async def finish(self, tenant: str, finished: CallFinished) -> bool:
        """Store the result; False when another one is stored. Raise `Refused` if the lease is lost before."""
        while True:
            try:
                written = await self._slots.store_result(tenant, finished, runner_epoch=self._runner_epoch)
                await reach("runner.result_stored")
                return not written.taken
            except Refused as refused:
                await self._pause(finished.attempt, refused)

    async def _pause(self, attempt: str, reason: Refused) -> None:
        if not self._holds():
            raise reason
        logger.warning("%s: not stored yet: %s", attempt, reason)
        await asyncio.sleep(_RETRY_S)


class LateResults:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def store(self, late: LateResult) -> None:
        logger.warning("%s: ended after another result was stored for it; stored as a note", late.attempt)
        try:
            await store_late_result(self._bus, late)
        except BanksmanError as error:
            logger.error("%s: the note of its late result is not stored: %s", late.attempt, error)

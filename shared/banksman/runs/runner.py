"""The runner's side of a call: admit it once, start it at most once, store its one result."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from banksman.contracts.calls import CallFinished, CallReply, CallRequest, CallStarted, LateResult
from banksman.contracts.tools import ToolResult

REMEMBERED_ATTEMPTS = 100_000
"""Ended attempts a runner keeps the ids of, so that a request that arrives late is not run again."""


class RunnerSlots(Protocol):
    """The slots as a runner may use them: it writes, and reads only by writing."""

    async def start(self, tenant: str, started: CallStarted) -> bool:
        """Store the start. True only when this process stored it, just now."""
        ...

    async def finish(self, tenant: str, finished: CallFinished) -> bool:
        """Store the result unless one is stored; keeps trying while the broker is away.

        Returns:
            False when another's result is stored.
        """
        ...


Execute = Callable[[CallRequest], Awaitable[ToolResult]]
Note = Callable[[LateResult], Awaitable[None]]


def _always(request: CallRequest) -> bool:
    return True


def attempt_key(request: CallRequest) -> str:
    """Names an attempt: ids of calls are unique in their tenant only."""
    return f"{request.tenant}.{request.attempt}"


@dataclass
class CallDesk:
    """What one runner process knows of the calls it was sent."""

    runner: str
    runner_epoch: int
    slots: RunnerSlots
    capacity: int
    """Calls admitted at a time, running and waiting; above it the answer is `busy`."""
    now: Callable[[], datetime]
    may_start: Callable[[], bool]
    """False when the lease was not renewed in time: nothing starts any more."""
    may_repeat: Callable[[CallRequest], bool]
    """Whether the tool is idempotent, by its own definition: what a request says of that is not trusted."""
    fits: Callable[[CallRequest], bool] = _always
    """False when the workspace moved since the request was made."""
    note: Note | None = None
    """Keeps what a call came to after another result was stored for it; None to drop it."""
    active: set[str] = field(default_factory=set[str])
    """Attempts admitted and not ended, by tenant."""
    ended: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    """Likewise those that this process never begins again, as many as are remembered."""

    def admit(self, request: CallRequest) -> tuple[CallReply, bool]:
        """Answer a request.

        Returns:
            The answer, and whether the caller must now `perform` the call (once for each attempt).
        """
        if request.runner_epoch != self.runner_epoch:
            return CallReply(answer="wrong_epoch"), False
        attempt = attempt_key(request)
        if attempt in self.active:
            return CallReply(answer="accepted"), False
        if attempt in self.ended:
            return CallReply(answer="done"), False
        if request.digest != request.call.digest:
            return CallReply(answer="refused", reason="The call is not the one that was approved."), False
        if not self.may_start() or len(self.active) >= self.capacity:
            return CallReply(answer="busy"), False
        if not self.fits(request):
            return CallReply(answer="wrong_epoch"), False
        self.active.add(attempt)
        return CallReply(answer="accepted"), True

    async def perform(self, request: CallRequest, execute: Execute) -> None:
        """Run an admitted call when its turn has come.

        An idempotent call starts without a record. Any other starts only when this process stored its start:
        a start that is void, another's, or of an earlier process means that it must not run here.

        A call that could not be tried (no lease, no broker) is admitted again when it is asked for again. One
        that broke off behind its start is not: the start is stored, and storing it again may look like new.
        """
        try:
            if not self.may_start():
                return
            if self.may_repeat(request):
                await self._finish(request, await execute(request))
                self._remember(attempt_key(request))
                return
            started = await self._start(request)
            self._remember(attempt_key(request))
            if started:
                await self._finish(request, await execute(request))
        finally:
            self.release(request)

    def release(self, request: CallRequest) -> None:
        """Forget that a call was admitted, so that it is admitted again when it is asked for again."""
        self.active.discard(attempt_key(request))

    async def _start(self, request: CallRequest) -> bool:
        started = CallStarted(
            conversation_id=request.conversation_id,
            attempt=request.attempt,
            runner=self.runner,
            runner_epoch=self.runner_epoch,
            ts=self.now(),
        )
        return await self.slots.start(request.tenant, started)

    async def _finish(self, request: CallRequest, result: ToolResult) -> None:
        finished = CallFinished(
            conversation_id=request.conversation_id, attempt=request.attempt, result=result
        )
        stored = await self.slots.finish(request.tenant, finished)
        # What changes nothing may run several times: of all but one the result is late.
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
        )

    def _remember(self, attempt: str) -> None:
        self.ended[attempt] = None
        if len(self.ended) > REMEMBERED_ATTEMPTS:
            self.ended.popitem(last=False)

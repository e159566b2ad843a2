"""The calls that come over NATS: answered at once, performed in tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

from banksman.bus.messages import Message
from banksman.contracts.calls import CallReply, CallRequest, CancelCall
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.tools import ToolResult, failed
from banksman.contracts.wire import parse
from banksman.runs.lease import Lease, LeaseLost
from banksman.runs.runner import CallDesk
from banksman.tool_runner.execution import Execution
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.workspaces.registry import SnapshotLost, Holding, WorkspaceRegistry
from banksman.tool_runner.workspaces.turns import Turns

logger = logging.getLogger(__name__)

KILL_S = 5.0
"""Seconds for killed calls to store their results."""
FENCE_S = 3.0
"""Likewise without a lease, of those that the whole process may still take."""


@dataclass
class Worker:
    """Takes calls for one runner process."""

    desk: CallDesk
    lease: Lease
    turns: Turns
    holdings: WorkspaceRegistry
    execution: Execution | None
    """None when the sandbox does not hold: every call is refused with `problem`."""
    problem: str | None
    tasks: asyncio.TaskGroup
    """Ends with the process, and every call with it."""
    draining: bool = False
    _stops: dict[str, Stop] = field(default_factory=dict[str, Stop])
    """By attempt, of every call that waits or runs."""
    _performing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def on_call(self, message: Message) -> bytes:
        """Answer `tool.call`; asking again for an attempt is safe."""
        request = parse(CallRequest, message.data).with_local_deadline(self.desk.now())
        _check_subject(message, request.tenant, request.conversation_id)
        return self._answer(request).model_dump_json().encode()

    async def on_cancel(self, message: Message) -> bytes:
        """Answer `tool.cancel`: `accepted` when the call is ended now, `done` when it is not here."""
        asked = parse(CancelCall, message.data)
        tenant = message.subject.split(".")[3]
        _check_subject(message, tenant, asked.attempt)
        stop = self._stops.get(f"{tenant}.{asked.attempt}")
        if stop is not None:
            stop.request(asked.reason)
        return CallReply(answer="done" if stop is None else "accepted").model_dump_json().encode()

    async def drain(self, grace_s: float) -> None:
        """Start nothing more; give running calls `grace_s` seconds, then kill them and store that."""
        self.draining = True
        await self._ended(grace_s)
        self._kill()
        await self._ended(KILL_S)

    async def fence(self) -> None:
        """Start nothing more and kill all calls: others may have declared what they came to.

        What they come to is stored as their result, or as a note where another one is stored already.
        """
        self.draining = True
        self._kill()
        await self._ended(FENCE_S)

    def _answer(self, request: CallRequest) -> CallReply:
        if self.execution is None:
            return CallReply(answer="refused", reason=f"The sandbox does not hold. {self.problem}")
        answer, admitted = self.desk.admit(request)
        if admitted:
            holding = self.holdings.enter(request.tenant, request.workspace_id)
            perform = self._perform(request, self.execution, holding)
            task = self.tasks.create_task(perform, name=request.attempt)
            self._performing.add(task)
            task.add_done_callback(self._performing.discard)
        return answer

    async def _perform(self, request: CallRequest, execution: Execution, holding: Holding) -> None:
        key = f"{request.tenant}.{request.attempt}"
        stop = self._stops[key] = Stop()
        lost: str | None = None

        async def execute(request: CallRequest) -> ToolResult:
            # The process may have been frozen while the start was stored.
            if not self.lease.holds:
                raise LeaseLost("the lease ended before the call could begin")
            if lost is not None:
                return failed(request.call.id, "unavailable", f"Not executed. {lost}")
            return await execution.run(request, stop, turn)

        try:
            name = request.call.name
            async with self.turns.turn(name, request.tenant, request.workspace_id) as turn:
                try:
                    changes = not self.desk.may_repeat(request)
                    await self.holdings.ready(holding, request.place, changes=changes)
                except SnapshotLost as error:
                    lost = str(error)
                except OSError as error:
                    lost = f"The workspace cannot be used: {error.strerror}"
                except BaseException:
                    self.desk.release(request)
                    raise
                await self.desk.perform(request, execute)
        except BanksmanError as error:
            logger.error("%s: ended without a stored result: %s", request.attempt, error)
        except Exception:
            logger.exception("%s: ended without a stored result", request.attempt)
        finally:
            self.holdings.leave(holding)
            self._stops.pop(key, None)

    def _kill(self) -> None:
        for stop in self._stops.values():
            stop.request("cancelled")

    async def _ended(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._performing:
                    await asyncio.wait(self._performing)


def _check_subject(message: Message, tenant: str, last: str) -> None:
    """Refuse a body that is about something else than its subject, which is what permissions judge."""
    named = message.subject.split(".")[3:]
    if named != [tenant, last]:
        raise BadInput("subject", message.subject, f"a subject that ends in {tenant}.{last}")

"""Calls received over NATS: each gets a reply immediately and then runs in its own task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

from banksman.contracts.calls import CallReply, CallRequest, CancelCall
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.tools import ToolResult, failed
from banksman.runs.lease import LeaseLost
from banksman.runs.runner import RunnerCalls
from banksman.tool_runner.admission import Admission
from banksman.tool_runner.execution import CallExecutor
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.workspaces.registry import HeldWorkspace, SnapshotLost
from banksman.tool_runner.workspaces.turns import Turns, takes_workspace

logger = logging.getLogger(__name__)

KILL_S = 5.0
"""Seconds that killed calls get to store their results."""
FENCE_S = 3.0
"""Seconds that killed calls get after the lease is lost; the process must end soon after."""


@dataclass
class Worker:
    """Accepts, runs and cancels the calls of one runner process."""

    calls: RunnerCalls
    admission: Admission
    turns: Turns
    executor: CallExecutor | None
    """None if the sandbox failed its self-test: every call is refused."""
    tasks: asyncio.TaskGroup
    """The task group of the process: calls end with the process."""
    _active: dict[str, ActiveCall] = field(default_factory=dict[str, "ActiveCall"])
    """Calls that wait or run, by tenant and attempt."""
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def on_call(self, request: CallRequest, subject: str) -> CallReply:
        """Reply to `tool.call`. A repeated request for the same attempt is safe.

        Raises:
            BadInput: the subject names another conversation.
        """
        request = request.with_local_deadline(self.calls.now())
        _check_subject(subject, request.tenant, request.conversation_id)
        return self._accept(request)

    def on_cancel(self, cancel: CancelCall, subject: str) -> CallReply:
        """Reply to `tool.cancel`: `accepted` if the call is ended now, `done` if there is no such call.

        Raises:
            BadInput: the subject names another call.
        """
        tenant = subject.split(".")[3]
        _check_subject(subject, tenant, cancel.attempt)
        call = self._active.get(f"{tenant}.{cancel.attempt}")
        if call is not None:
            call.stop.request(cancel.reason)
        return CallReply(answer="done" if call is None else "accepted")

    async def drain(self, grace_s: float) -> None:
        """Start no further call; after `grace_s` seconds, kill the running calls and store their results."""
        self.admission.draining = True
        await self._wait_for_calls(grace_s)
        self._kill()
        await self._wait_for_calls(KILL_S)

    async def fence(self) -> None:
        """Start no further call and kill all calls: owners may already have declared their outcomes.

        Each outcome is stored as the result of its call, or as a note if another result is already stored.
        """
        self.admission.draining = True
        self._kill()
        await self._wait_for_calls(FENCE_S)

    def _accept(self, request: CallRequest) -> CallReply:
        if self.executor is None:
            reason = f"The sandbox failed its self-test. {self.admission.problem}"
            return CallReply(answer="refused", reason=reason)
        reply, admitted = self.calls.admit(request)
        if admitted:
            # Entered before the task runs, so that the workspace is neither dropped nor evicted meanwhile.
            workspace = self.admission.registry.enter(request.tenant, request.workspace_id)
            call = ActiveCall(request, workspace, self, self.executor)
            self._active[call.key] = call
            task = self.tasks.create_task(call.run(), name=request.attempt)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return reply

    def forget(self, call: ActiveCall) -> None:
        """Remove a call that has ended."""
        self.admission.registry.leave(call.workspace)
        self._active.pop(call.key, None)

    def _kill(self) -> None:
        for call in self._active.values():
            call.stop.request("cancelled")

    async def _wait_for_calls(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._running:
                    await asyncio.wait(self._running)


class ActiveCall:
    """One admitted call, from the wait for its turn to its stored result."""

    def __init__(
        self, request: CallRequest, workspace: HeldWorkspace, worker: Worker, executor: CallExecutor
    ) -> None:
        self.key = f"{request.tenant}.{request.attempt}"
        self.workspace = workspace
        self.stop = Stop()
        """Ends the call, also while it waits."""
        self._request = request
        self._worker = worker
        self._executor = executor
        self._turn = contextlib.AsyncExitStack()
        self._unusable: str | None = None
        """Why the call's workspace has no usable files; None if it has."""

    async def run(self) -> None:
        """Wait for the turn, run the call and store its result. Errors are logged: no caller awaits them."""
        request = self._request
        try:
            name = request.call.name
            async with self._worker.turns.turn(name, request.tenant, request.workspace_id) as self._turn:
                await self._prepare_workspace()
                await self._worker.calls.perform(request, self._execute)
        except BanksmanError as error:
            logger.error("%s: ended without a stored result: %s", request.attempt, error)
        except Exception:
            logger.exception("%s: ended without a stored result", request.attempt)
        finally:
            self._worker.forget(self)

    async def _prepare_workspace(self) -> None:
        """Bring the files of the workspace here. If that fails, the result of the call states the reason."""
        request, admission = self._request, self._worker.admission
        try:
            await admission.registry.prepare(
                self.workspace,
                request.place,
                changes=not admission.may_repeat(request),
                has_turn=takes_workspace(request.call.name),
            )
        except SnapshotLost as error:
            self._unusable = str(error)
        except OSError as error:
            self._unusable = f"The workspace cannot be used: {error.strerror}"
        except BaseException:
            # The call has not started, so the owner may send it again, here or elsewhere.
            self._worker.calls.release(request)
            raise

    async def _execute(self, request: CallRequest) -> ToolResult:
        # The process may have been frozen while the start was stored, and the lease may have expired.
        if not self._worker.admission.holds_lease():
            raise LeaseLost("the lease ended before the call could start")
        if self._unusable is not None:
            return failed(request.call.id, "unavailable", f"Not executed. {self._unusable}")
        return await self._executor.run(request, self.stop, self._turn)


def _check_subject(subject: str, tenant: str, last: str) -> None:
    """Refuse a body that disagrees with its subject: permissions apply to the subject only."""
    named = subject.split(".")[3:]
    if named != [tenant, last]:
        raise BadInput("subject", subject, f"a subject that ends in {tenant}.{last}")

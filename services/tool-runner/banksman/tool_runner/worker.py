"""The requests that a runner serves over NATS: calls, cancellations and files.

Each call gets a reply immediately. An accepted call runs in its own task.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from faststream import ExceptionMiddleware
from faststream.nats import NatsRouter

from banksman.bus.control_plane.control import CONCURRENCY, Received
from banksman.contracts import subjects
from banksman.contracts.calls import CallReply, CallRequest, CancelCall, FileReply, FileRequest
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.subjects import ANY
from banksman.runs.runners.calls import RunnerCalls
from banksman.tool_runner.execution import ActiveCall, Admission, CallExecutor
from banksman.tool_runner.sandbox.base import KilledReason
from banksman.tool_runner.workspaces.files_api import FilesApi

KILL_S = 5.0
"""Seconds that killed calls get to store their results."""
FENCE_S = 3.0
"""Seconds that killed calls get after the lease is lost; the process must end soon after."""


@dataclass
class CallWorker:
    calls: RunnerCalls
    admission: Admission
    executor: CallExecutor | None
    """None if the sandbox failed its self-test: every call is refused."""
    tasks: asyncio.TaskGroup
    """The task group of the process: calls end with the process."""
    _active: dict[asyncio.Task[None], ActiveCall] = field(
        default_factory=dict["asyncio.Task[None]", ActiveCall]
    )
    """Calls that wait or run, by their task."""

    async def call(self, request: CallRequest, message: Received) -> CallReply:
        """Run a call, once. The reply states whether it is accepted; its result is published as an event."""
        request = request.with_local_deadline(self.calls.now())
        _check_subject(message.subject, request.tenant, request.conversation_id)
        if self.executor is None:
            reason = f"The sandbox failed its self-test. {self.admission.problem}"
            return CallReply(answer="refused", reason=reason)
        reply, admitted = self.calls.admit(request)
        if admitted:
            # Entered before the task runs, so that the workspace is neither dropped nor evicted meanwhile.
            workspace = self.admission.registry.enter(request.tenant, request.workspace_id)
            call = ActiveCall(request, workspace)
            task = self.tasks.create_task(self.executor.run(call), name=request.attempt)
            self._active[task] = call
            task.add_done_callback(self._forget)
        return reply

    async def cancel(self, request: CancelCall, message: Received) -> CallReply:
        tenant = message.subject.split(".")[3]
        _check_subject(message.subject, tenant, request.attempt)
        found = False
        for call in self._active.values():
            if call.request.tenant == tenant and call.request.attempt == request.attempt:
                call.stop.request(request.reason)
                found = True
        return CallReply(answer="accepted" if found else "done")

    async def drain(self, grace_s: float) -> None:
        """Start no further call; after `grace_s` seconds, kill the running calls and store their results."""
        self.admission.draining = True
        await self._wait_for_calls(grace_s)
        self._kill("cancelled")
        await self._wait_for_calls(KILL_S)

    async def fence(self) -> None:
        """Start no further call and kill all calls: owners may already have declared their outcomes.

        Each outcome is stored as the result of its call, or as a note if another result is already stored. A
        command that is killed has the result `unknown_outcome`, as an owner would declare it.
        """
        self.admission.draining = True
        self._kill("fenced")
        await self._wait_for_calls(FENCE_S)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.admission.registry.leave(self._active.pop(task).workspace)

    def _kill(self, reason: KilledReason) -> None:
        for call in self._active.values():
            call.stop.request(reason)

    async def _wait_for_calls(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._active:
                    await asyncio.wait(self._active)


def _check_subject(subject: str, tenant: str, last: str) -> None:
    """Refuse a body that disagrees with its subject: permissions apply to the subject only."""
    named = subject.split(".")[3:]
    if named != [tenant, last]:
        raise BadInput("subject", subject, f"a subject that ends in {tenant}.{last}")


def runner_router(runner: str, worker: CallWorker, files: FilesApi) -> NatsRouter:
    router = NatsRouter()

    calls, cancels = subjects.tool_call(runner, ANY, ANY), subjects.tool_cancel(runner, ANY, ANY)
    router.subscriber(calls, max_workers=CONCURRENCY, title="tool.call")(worker.call)
    router.subscriber(cancels, max_workers=CONCURRENCY, title="tool.cancel")(worker.cancel)
    router.include_router(_file_router(runner, files))
    return router


def _file_router(runner: str, files: FilesApi) -> NatsRouter:
    # Gateways read `error` in the reply to a file request, and do not know the error envelope.
    refusals = ExceptionMiddleware()
    router = NatsRouter(middlewares=(refusals,))

    @refusals.add_handler(BanksmanError, publish=True)
    async def refuse(error: BanksmanError) -> FileReply:
        return FileReply(error=str(error))

    @router.subscriber(subjects.files(runner, ANY, ANY), max_workers=CONCURRENCY, title="file")
    async def file(request: FileRequest, message: Received) -> FileReply:
        """List, read, write and delete files of a workspace."""
        return await files.respond(request, message.subject)

    return router

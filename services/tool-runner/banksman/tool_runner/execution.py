"""Serves calls: admits each one, waits for its turn, executes it and stores its result.

Each call gets a reply immediately. An accepted call runs in its own task.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import Received, check_subject
from banksman.contracts.calls import CallReply, CallRequest, CancelCall
from banksman.contracts.errors import BanksmanError
from banksman.contracts.mcp import HttpServer, McpTarget
from banksman.contracts.tools import ToolResult, failed
from banksman.contracts.wire import JsonObject, json_bytes
from banksman.contracts.workspace_tools import BASH, WEB_FETCH
from banksman.runs.runners.calls import RunnerCalls
from banksman.runs.runners.lease import Lease, LeaseLost
from banksman.runtime.failpoints import reach
from banksman.runtime.tracing import traced
from banksman.runtime.waits import all_ended
from banksman.tool_runner.outputs import Outputs, StoredOutput, progress
from banksman.tool_runner.processes.processes import LastingProcesses
from banksman.tool_runner.sandbox.base import KilledReason, Stop
from banksman.tool_runner.tools.toolbox import OnProgress, ToolBox, ToolOutcome, ToolRun, failure
from banksman.tool_runner.workspaces.entry import SnapshotLost, WorkspaceEntry
from banksman.tool_runner.workspaces.registry import CallTurns, WorkspaceRegistry, takes_workspace
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

logger = logging.getLogger(__name__)

MAX_RESULT_BYTES = 200 * 1024
"""Bytes of UTF-8 of one result as JSON. An event of a conversation has at most 256 KiB."""
OVERTIME_S = 10.0
"""Seconds after its time-out at which a tool that does not end by itself is cancelled."""
STORE_OUTPUT_S = 30.0
"""Seconds to store a whole output; after that, the result is returned without it."""
KILL_S = 5.0
"""Seconds that killed calls get to store their results."""
FENCE_S = 3.0
"""Seconds that killed calls get after the lease is lost; the process must end soon after."""


@dataclass(frozen=True, slots=True)
class ActiveCall:
    request: CallRequest
    workspace: WorkspaceEntry
    stop: Stop = field(default_factory=Stop)
    """Ends the call, also while it waits."""


@dataclass
class Admission:
    lease: Lease
    registry: WorkspaceRegistry
    box: ToolBox | None
    """None if the sandbox failed its self-test; then no call is accepted."""
    problem: str | None
    """Why the sandbox failed its self-test; None if it passed."""
    draining: bool = False
    """True after the process has begun to stop; calls that wait for their turn then end unstarted."""

    def holds_lease(self) -> bool:
        return self.lease.holds

    def may_start(self) -> bool:
        return self.lease.holds and not self.draining

    def may_repeat(self, request: CallRequest) -> bool:
        """Return whether the tool is idempotent by the runner's own definition, not by the request."""
        return self.box is not None and self.box.may_repeat(request.call.name)

    def is_placed_here(self, request: CallRequest) -> bool:
        return self.registry.admits(request.tenant, request.workspace_id, request.place)


class CallsMcpTools(Protocol):
    async def call(self, target: McpTarget, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Call a tool once; every failure is an outcome."""
        ...

    def cancel(self, tenant: str, call_id: str) -> None:
        """Cancel a call that waits for its user; do nothing for another one."""
        ...

    async def close(self) -> None:
        """End the sessions of all conversations, and their programs."""
        ...


@dataclass(frozen=True, slots=True)
class CallExecutor:
    """Executes the admitted calls of one runner. Every call that starts ends with a result."""

    bus: Bus
    calls: RunnerCalls
    admission: Admission
    turns: CallTurns
    box: ToolBox
    mcp: CallsMcpTools
    workspaces: WorkspaceStore
    outputs: Outputs
    processes: LastingProcesses

    async def run(self, call: ActiveCall) -> None:
        """Wait for the turn, execute the call and store its result. Log errors: no caller awaits it."""
        request = call.request
        with traced(request.traceparent):
            try:
                async with self.turns.turn(_turn_of(request), request.tenant, request.workspace_id) as turn:
                    unusable = await self._prepare_workspace(call)
                    await self.calls.perform(request, lambda _: self._execute(call, turn, unusable))
                await self.processes.settle(call.workspace.key, request.place.processes)
            except BanksmanError as error:
                logger.error("%s: ended without a stored result: %s", request.attempt, error)
                self.processes.notify_again(call.workspace.key, request.call.id)
            except Exception:
                logger.exception("%s: ended without a stored result", request.attempt)
                self.processes.notify_again(call.workspace.key, request.call.id)

    async def _prepare_workspace(self, call: ActiveCall) -> str | None:
        request = call.request
        try:
            await self.admission.registry.prepare(
                call.workspace,
                request.place,
                changes=not self.admission.may_repeat(request),
                has_turn=takes_workspace(_turn_of(request)),
                repeats=True,
            )
        except SnapshotLost as error:
            return str(error)
        except OSError as error:
            return f"The workspace cannot be used: {error.strerror}"
        except BaseException:
            # The call has not started, so the owner may send it again, here or elsewhere.
            self.calls.release(request)
            raise
        return None

    async def _execute(self, call: ActiveCall, turn: AsyncExitStack, unusable: str | None) -> ToolResult:
        """Execute a call whose start is stored. `unusable` is the reason why it has no workspace, or None."""
        # The process may have been frozen while the start was stored, and the lease may have expired.
        if not self.admission.holds_lease():
            raise LeaseLost("the lease ended before the call could start")
        request = call.request
        if unusable is not None:
            return failed(request.call.id, "unavailable", f"Not executed. {unusable}")
        started_at = self.calls.now()
        async with progress(self.bus, self.calls.runner, request) as on_output:
            outcome = await self._outcome(request, call.stop, on_output)
        await reach("runner.end")
        if call.stop.reason == "fenced" and self.admission.may_repeat(request):
            # Without a result the owner sends the call to another runner.
            raise LeaseLost("the lease ended while the call ran")
        # The next call may start now: the upload of a long output can take seconds.
        await turn.aclose()
        result = storable(await self._result(request, outcome, started_at))
        # The model does not read what asks its user.
        key, known = call.workspace.key, () if outcome.asks else request.place.processes
        if notice := self.processes.notice(key, known, request.call.id):
            result.content["notice"] = notice
        return result

    async def _outcome(self, request: CallRequest, stop: Stop, on_output: OnProgress | None) -> ToolOutcome:
        call = request.call
        # The run may end before the call's own time-out.
        timeout_s = min(call.timeout_s, (request.deadline - self.calls.now()).total_seconds())
        if timeout_s <= 0:
            return failure("timeout", "the run timed out before the call could start")
        try:
            workspace = self.workspaces.get(request.tenant, request.workspace_id)
            await reach("runner.begin")
            # Tools end at `timeout_s` by themselves and then return partial output; this is the safety net.
            async with asyncio.timeout(timeout_s + OVERTIME_S):
                if request.mcp is not None:
                    run = ToolRun(
                        workspace,
                        timeout_s,
                        stop,
                        on_output,
                        run_id=request.run_id,
                        call_id=call.id,
                        answer=request.answer,
                    )
                    return await self.mcp.call(request.mcp, call.arguments, run)
                return await self.box.run(
                    call.name,
                    workspace,
                    call.arguments,
                    timeout_s=timeout_s,
                    on_output=on_output,
                    stop=stop,
                    network=call.network,
                    user=request.user,
                    search=request.search,
                    run_id=request.run_id,
                    call_id=call.id,
                    toolchain=request.toolchain,
                )
        except TimeoutError:
            return failure("timeout", f"{call.name[:80]} did not end within {timeout_s:g} s")
        except OSError as error:
            logger.error("%s: the workspace cannot be opened: %s", request.workspace_id, error)
            return failure("unavailable", f"the workspace cannot be opened: {error.strerror}")

    async def _result(self, request: CallRequest, outcome: ToolOutcome, started_at: datetime) -> ToolResult:
        output = await self._store_output(request, outcome.output)
        return ToolResult(
            tool_call_id=request.call.id,
            content=outcome.value,
            is_error=outcome.is_error,
            error_kind=outcome.error_kind,
            exit_code=outcome.exit_code,
            truncated=outcome.truncated,
            output_ref=output and output.name,
            output_key=output and output.key,
            duration_ms=outcome.duration_ms,
            runner=self.calls.runner,
            started_at=started_at,
            changed=outcome.changed,
            changed_more=outcome.changed_more,
            asks=outcome.asks,
        )

    async def _store_output(self, request: CallRequest, output: bytes | None) -> StoredOutput | None:
        if output is None:
            return None
        try:
            return await self.outputs.put(
                request.tenant, request.conversation_id, request.attempt, output, STORE_OUTPUT_S
            )
        except BanksmanError as error:
            logger.error("%s: the whole output is not stored: %s", request.attempt, error)
            return None


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
        check_subject(message, request.tenant, request.conversation_id)
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
        check_subject(message, tenant, request.attempt)
        found = False
        for call in self._active.values():
            if call.request.tenant == tenant and call.request.attempt == request.attempt:
                call.stop.request(request.reason)
                found = True
        if not found and self.executor is not None:
            self.executor.mcp.cancel(tenant, request.attempt.rpartition("-")[0])
        return CallReply(answer="accepted" if found else "done")

    async def drain(self, grace_s: float) -> None:
        """Start no further call; after `grace_s` seconds, kill the running calls and store their results."""
        self.admission.draining = True
        await all_ended(self._active, grace_s)
        self._kill("cancelled")
        await all_ended(self._active, KILL_S)
        if self.executor is not None:
            # Nothing changes a file after the last snapshots.
            await self.executor.mcp.close()
            await self.executor.processes.end_all("cancelled")

    async def fence(self) -> None:
        """Start no further call and kill all calls: owners may already have declared their outcomes.

        Each outcome is stored as the result of its call, or as a note if another result is already stored. A
        command that is killed has the result `unknown_outcome`, as an owner would declare it.
        """
        self.admission.draining = True
        self._kill("fenced")
        if self.executor is not None:
            await self.executor.processes.end_all("fenced")
            await self.executor.mcp.close()
        await all_ended(self._active, FENCE_S)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.admission.registry.leave(self._active.pop(task).workspace)

    def _kill(self, reason: KilledReason) -> None:
        for call in self._active.values():
            call.stop.request(reason)


def _turn_of(request: CallRequest) -> str:
    """Return the tool whose turn a call takes: of `bash` for an MCP program, of `web_fetch` for a server."""
    if request.mcp is None:
        return request.call.name
    return WEB_FETCH.name if isinstance(request.mcp.transport, HttpServer) else BASH.name


def storable(result: ToolResult) -> ToolResult:
    """Return the result, or a failure if it is too large: error texts may repeat the arguments."""
    if (size := json_bytes(result)) <= MAX_RESULT_BYTES:
        return result
    text = f"the result had {size} bytes and was omitted; at most {MAX_RESULT_BYTES} fit"
    replacement = failure("output_limit", text)
    return result.model_copy(
        update={
            "content": replacement.value,
            "is_error": True,
            "error_kind": replacement.error_kind,
            "truncated": True,
            "changed": (),
            "changed_more": 0,
        }
    )

"""Executes a call that has its turn, and builds its result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.objects import Objects
from banksman.contracts.calls import CallRequest
from banksman.contracts.errors import BanksmanError
from banksman.contracts.fitting import first_fitting, json_bytes
from banksman.contracts.tools import ToolResult
from banksman.runtime.failpoints import reach
from banksman.tool_runner.progress import progress
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.tools.base import OnProgress, ToolOutcome, failure
from banksman.tool_runner.tools.toolbox import ToolBox
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

logger = logging.getLogger(__name__)

MAX_RESULT_BYTES = 200 * 1024
"""Bytes of UTF-8 of one result as JSON. An event of a conversation has at most 256 KiB."""
OVERTIME_S = 10.0
"""Seconds after its time-out at which a tool that does not end by itself is cancelled."""
STORE_OUTPUT_S = 30.0
"""Time limit for storing a whole output; without it, the result is returned alone."""


@dataclass(frozen=True, slots=True)
class CallExecutor:
    """Executes calls that have their turn. Every call ends with a result."""

    bus: Bus
    runner: str
    box: ToolBox
    workspaces: WorkspaceStore
    outputs: Objects
    now: Callable[[], datetime]
    """The broker's clock; the deadline of a request uses it too."""

    async def run(self, request: CallRequest, stop: Stop, turn: AsyncExitStack) -> ToolResult:
        """Execute a call. Its turn ends before its output is uploaded, so that the next call can start."""
        started_at = self.now()
        async with progress(self.bus, self.runner, request) as on_output:
            outcome = await self._outcome(request, stop, on_output)
        await reach("runner.end")
        # The next call may start now: the upload of a long output can take seconds.
        await turn.aclose()
        result = ToolResult(
            tool_call_id=request.call.id,
            content=outcome.value,
            is_error=outcome.is_error,
            error_kind=outcome.error_kind,
            exit_code=outcome.exit_code,
            truncated=outcome.truncated,
            output_ref=await self._store_output(request, outcome.output),
            duration_ms=outcome.duration_ms,
            runner=self.runner,
            started_at=started_at,
            changed=outcome.changed,
        )
        return storable(result)

    async def _outcome(self, request: CallRequest, stop: Stop, on_output: OnProgress | None) -> ToolOutcome:
        call = request.call
        # The run may end before the call's own time-out.
        timeout_s = min(call.timeout_s, (request.deadline - self.now()).total_seconds())
        if timeout_s <= 0:
            return failure("timeout", "the run timed out before the call could start")
        try:
            workspace = self.workspaces.get(request.tenant, request.workspace_id)
            await reach("runner.begin")
            # Tools end at `timeout_s` by themselves and then return partial output; this is the safety net.
            async with asyncio.timeout(timeout_s + OVERTIME_S):
                return await self.box.run(
                    call.name,
                    workspace,
                    call.arguments,
                    timeout_s=timeout_s,
                    on_output=on_output,
                    stop=stop,
                    network=call.network,
                )
        except TimeoutError:
            return failure("timeout", f"{call.name[:80]} did not end within {timeout_s:g} s")
        except OSError as error:
            logger.error("%s: the workspace cannot be opened: %s", request.workspace_id, error)
            return failure("unavailable", f"the workspace cannot be opened: {error.strerror}")

    async def _store_output(self, request: CallRequest, output: bytes | None) -> str | None:
        """Store a whole output; return its name, or None if there is no output or it cannot be stored."""
        if output is None:
            return None
        name = f"{request.tenant}/{request.conversation_id}/{request.attempt}"
        try:
            await self.outputs.put(name, output, deadline_s=STORE_OUTPUT_S)
        except BanksmanError as error:
            logger.error("%s: the whole output is not stored: %s", request.attempt, error)
            return None
        return name


def storable(result: ToolResult) -> ToolResult:
    """Return the result, or a failure in its place if it is too large: some messages repeat the arguments."""
    return first_fitting(_shorter(result), MAX_RESULT_BYTES)


def _shorter(result: ToolResult) -> Iterator[ToolResult]:
    yield result
    text = f"the result had {json_bytes(result)} bytes and was omitted; at most {MAX_RESULT_BYTES} fit"
    replacement = failure("output_limit", text)
    yield result.model_copy(
        update={
            "content": replacement.value,
            "is_error": True,
            "error_kind": replacement.error_kind,
            "truncated": True,
            "changed": (),
        }
    )

"""One call from its turn to its result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.objects import Objects
from banksman.contracts.calls import CallRequest
from banksman.contracts.errors import BanksmanError
from banksman.contracts.tools import ToolResult
from banksman.runtime.failpoints import reach
from banksman.tool_runner.progress import progress
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.tools.base import OnProgress, ToolOutcome, failure
from banksman.tool_runner.tools.toolbox import ToolBox
from banksman.tool_runner.workspaces.workspace import WorkspaceStore

logger = logging.getLogger(__name__)

MAX_RESULT_BYTES = 200 * 1024
"""Of one result in JSON. An event of a conversation has at most 256 KiB."""
OVERTIME_S = 10.0
"""Seconds beyond its time-out after which a tool that does not end by itself is left."""
STORE_OUTPUT_S = 30.0
"""Seconds for storing a whole output; after that the result goes without it."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Executes calls whose turn has come. Every end is a result."""

    bus: Bus
    runner: str
    box: ToolBox
    workspaces: WorkspaceStore
    outputs: Objects
    now: Callable[[], datetime]
    """The moment; requests are dated by the same clock."""

    async def run(self, request: CallRequest, stop: Stop, turn: AsyncExitStack) -> ToolResult:
        """Execute a call; gives its turn to the next one before what it wrote is stored."""
        started_at = self.now()
        async with progress(self.bus, self.runner, request) as on_output:
            outcome = await self._outcome(request, stop, on_output)
        await reach("runner.end")
        await turn.aclose()
        result = ToolResult(
            tool_call_id=request.call.id,
            content=outcome.value,
            is_error=outcome.is_error,
            error_kind=outcome.error_kind,
            exit_code=outcome.exit_code,
            truncated=outcome.truncated,
            output_ref=await self._stored(request, outcome.output),
            duration_ms=outcome.duration_ms,
            runner=self.runner,
            started_at=started_at,
            changed=outcome.changed,
        )
        return _fitting(result)

    async def _outcome(self, request: CallRequest, stop: Stop, on_output: OnProgress | None) -> ToolOutcome:
        call = request.call
        timeout_s = min(call.timeout_s, (request.deadline - self.now()).total_seconds())
        if timeout_s <= 0:
            return failure("timeout", "the time of the run was over before the call could begin")
        try:
            workspace = self.workspaces.get(request.tenant, request.workspace_id)
            await reach("runner.begin")
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

    async def _stored(self, request: CallRequest, output: bytes | None) -> str | None:
        """Where the whole output is kept; None when there is none, or the store does not take it."""
        if output is None:
            return None
        name = f"{request.tenant}/{request.conversation_id}/{request.attempt}"
        try:
            await self.outputs.put(name, output, deadline_s=STORE_OUTPUT_S)
        except BanksmanError as error:
            logger.error("%s: the whole output is not stored: %s", request.attempt, error)
            return None
        return name


def _fitting(result: ToolResult) -> ToolResult:
    """The result, or one that says that it was too large: arguments come back in some messages."""
    size = len(result.model_dump_json())
    if size <= MAX_RESULT_BYTES:
        return result
    error = f"the result had {size} characters and was left out; at most {MAX_RESULT_BYTES} fit"
    told = failure("output_limit", error)
    return result.model_copy(
        update={
            "content": told.value,
            "is_error": True,
            "error_kind": told.error_kind,
            "truncated": True,
            "changed": (),
        }
    )

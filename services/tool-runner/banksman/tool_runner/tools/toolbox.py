from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from banksman.contracts.network import NetworkPolicy
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.schemas import argument_problem
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.egress.proxy.session import CommandProxy
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.sandbox.base import Sandbox, Stop
from banksman.tool_runner.tools.base import OnProgress, Tool, ToolOutcome, ToolRun, failure
from banksman.tool_runner.tools.bash import Bash
from banksman.tool_runner.tools.read_file import ReadFile
from banksman.tool_runner.tools.web_fetch import WebFetch
from banksman.tool_runner.tools.write_file import WriteFile
from banksman.tool_runner.workspaces.workspace import Workspace

log = logging.getLogger(__name__)

_MAX_PROBLEM_CHARS = 600
"""Of what a schema violation says: it repeats the value, which may be a whole file."""

OnStart = Callable[[], Awaitable[None]]
"""Awaited when the call has its turn, before its first effect; when it raises, nothing is executed."""


class ToolBox:
    """Tools by name. One bad call never takes another one with it: every end is a `ToolOutcome`."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.definition.name: tool for tool in tools}

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What models are told, in the order of construction."""
        return tuple(tool.definition for tool in self._tools.values())

    def may_repeat(self, name: str) -> bool:
        """Whether a call of a tool changes nothing, by the tool's own definition; False for one not known."""
        tool = self._tools.get(name)
        return tool is not None and tool.definition.idempotent

    async def run(
        self,
        name: str,
        workspace: Workspace,
        arguments: JsonObject,
        *,
        timeout_s: float | None = None,
        on_output: OnProgress | None = None,
        on_start: OnStart | None = None,
        stop: Stop | None = None,
        network: NetworkPolicy | None = None,
    ) -> ToolOutcome:
        """Execute one call when its turn in the workspace has come.

        `timeout_s` (default: the definition's) counts from that turn. `stop` ends a call that waits or runs.
        `network` says where it may connect to, within what this runner allows.
        Cancelling the caller also ends the call, and its processes.

        Raises:
            Exception: only what `on_start` raises; then nothing was executed.
        """
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools)
            return failure("unknown_tool", f"there is no tool {name[:80]!r}; there are {known}")
        if problem := argument_problem(tool.definition.input_schema, arguments):
            return failure("invalid_arguments", str(problem)[:_MAX_PROBLEM_CHARS])
        limit_s = tool.definition.timeout_s if timeout_s is None else timeout_s
        run = ToolRun(workspace, limit_s, stop or Stop(), on_output, network)
        if not tool.exclusive:
            return await self._execute(tool, arguments, run, on_start)
        async with workspace.exclusive():
            return await self._execute(tool, arguments, run, on_start)

    async def _execute(
        self, tool: Tool, arguments: JsonObject, run: ToolRun, on_start: OnStart | None
    ) -> ToolOutcome:
        if run.stop.reason is not None:
            return failure("cancelled", "the call was cancelled before it started")
        if on_start is not None:
            await on_start()
        started = time.monotonic()
        outcome = await _guarded(tool, arguments, run)
        return dataclasses.replace(outcome, duration_ms=round((time.monotonic() - started) * 1000))


async def _guarded(tool: Tool, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
    """A fault of ours in one tool is that call's result; its details stay in the log."""
    try:
        return await tool.run(arguments, run)
    except Exception as error:
        log.exception("tool %s failed", tool.definition.name)
        return failure("tool_error", f"{tool.definition.name} failed: {type(error).__name__}")


def workspace_tools(
    sandbox: Sandbox, egress: Egress, limits: RunnerLimits, *, commands_may_connect: bool = False
) -> ToolBox:
    """The four tools of a runner.

    With `commands_may_connect` the policy of an assistant can grant its commands a proxy before `egress`.
    """
    proxy = CommandProxy(egress, limits.proxy) if commands_may_connect else None
    return ToolBox(
        (Bash(sandbox, limits, proxy), ReadFile(limits), WriteFile(limits), WebFetch(egress, limits))
    )

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable

from banksman.contracts.tools import NetworkPolicy, ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.schema_checks.checker import argument_problem
from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.egress.proxy_session import CommandProxy
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.sandbox.base import Sandbox, Stop
from banksman.tool_runner.tools.base import OnProgress, ToolOutcome, ToolRun, WorkspaceTool, failure
from banksman.tool_runner.tools.bash import BashTool
from banksman.tool_runner.tools.files import ReadFileTool, WriteFileTool
from banksman.tool_runner.tools.search_code import SearchCodeTool
from banksman.tool_runner.tools.web_fetch import WebFetchTool
from banksman.tool_runner.workspaces.workspace import Workspace

log = logging.getLogger(__name__)

_MAX_PROBLEM_CHARS = 600
"""Limit for the text of a schema violation: it repeats the value, which may be a whole file."""


class ToolBox:
    """The tools of a runner by name. Every call ends with a `ToolOutcome`, so no call can fail another."""

    def __init__(self, tools: Iterable[WorkspaceTool]) -> None:
        self._tools = {tool.definition.name: tool for tool in tools}

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(tool.definition for tool in self._tools.values())

    def may_repeat(self, name: str) -> bool:
        """Return whether the tool's own definition declares it idempotent; False for an unknown tool."""
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
        stop: Stop | None = None,
        network: NetworkPolicy | None = None,
    ) -> ToolOutcome:
        """Execute one call. The caller holds its turn in the workspace; see `CallTurns`.

        Cancelling the caller also ends the call and its processes. Without `timeout_s`, the time-out of the
        definition applies. `network` can only narrow what this runner allows.
        """
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools)
            return failure("unknown_tool", f"unknown tool {name[:80]!r}; available tools: {known}")
        if problem := argument_problem(tool.definition.input_schema, arguments):
            return failure("invalid_arguments", str(problem)[:_MAX_PROBLEM_CHARS])
        limit_s = tool.definition.timeout_s if timeout_s is None else timeout_s
        run = ToolRun(workspace, limit_s, stop or Stop(), on_output, network)
        if run.stop.reason == "fenced":
            return failure("not_executed", "not executed: the runner lost its lease before the call started")
        if run.stop.reason is not None:
            return failure("cancelled", "the call was cancelled before it started")
        started = time.monotonic()
        try:
            outcome = await tool.run(arguments, run)
        except Exception as error:
            # The details may contain secrets of this machine, so they go to the log and not to the model.
            log.exception("tool %s failed", name)
            outcome = failure("tool_error", f"{name} failed: {type(error).__name__}")
        return dataclasses.replace(outcome, duration_ms=round((time.monotonic() - started) * 1000))


def workspace_tools(
    sandbox: Sandbox, egress: Egress, limits: RunnerLimits, *, commands_may_connect: bool = False
) -> ToolBox:
    """Build the tools of a runner.

    With `commands_may_connect`, the policy of an assistant can grant its commands a proxy to `egress`.
    """
    proxy = CommandProxy(egress, limits.proxy) if commands_may_connect else None
    return ToolBox(
        (
            BashTool(sandbox, limits, proxy),
            ReadFileTool(limits),
            WriteFileTool(limits),
            WebFetchTool(egress, limits),
            SearchCodeTool(sandbox, limits),
        )
    )

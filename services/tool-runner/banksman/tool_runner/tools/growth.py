"""Watches the size of a workspace while a program runs in it."""

from __future__ import annotations

import asyncio

from banksman.tool_runner.limits import WorkspaceLimits
from banksman.tool_runner.tools.base import ToolRun


async def watch_growth(run: ToolRun, bounds: WorkspaceLimits, every_s: float) -> None:
    """Stop a call that makes its workspace too large. A workspace that is already too large may not grow."""
    meter = run.workspace.meter
    while True:
        if meter.due and (await meter.renew(bounds)).excess(bounds):
            run.stop.request("workspace_limit")
        await asyncio.sleep(every_s)

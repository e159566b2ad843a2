"""A tool server whose first call with a marker takes a minute: `once`, and `again` that may run twice."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from banksman.sdk import ToolServer, tool

MARKERS = Path(os.environ["MARKERS"])


@tool(requires_approval=False)
async def once(marker: str) -> str:
    """Take a minute."""
    return await _take_a_minute(marker)


@tool(requires_approval=False, idempotent=True)
async def again(marker: str) -> str:
    """Take a minute; a call may run twice."""
    return await _take_a_minute(marker)


async def _take_a_minute(marker: str) -> str:
    if not await asyncio.to_thread(_is_known, marker):
        await asyncio.sleep(60)
    return "done"


def _is_known(marker: str) -> bool:
    try:
        (MARKERS / marker).touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


if __name__ == "__main__":
    ToolServer("slow", [once, again]).run()

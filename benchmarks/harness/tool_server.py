"""The tool server of the benchmarks: one trivial tool. It prints a line once the tool is registered."""

from __future__ import annotations

import asyncio

from banksman.runtime.event_loop import run
from banksman.sdk import ToolServer, tool


@tool(requires_approval=False)
async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


async def main() -> None:
    async with ToolServer("bench", [add]):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main())

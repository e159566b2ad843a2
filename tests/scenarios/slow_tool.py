"""A process of a tool server whose only tool writes a line to the file `LEDGER`, and then takes a minute."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from banksman.sdk import Toolbox, ToolServer

box = Toolbox()


def note() -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write("ran\n")


@box.tool(requires_approval=False, timeout_s=120)
async def take_a_minute() -> str:
    """Write a line, and wait."""
    await asyncio.to_thread(note)
    await asyncio.sleep(60)
    return "done"


if __name__ == "__main__":
    ToolServer("slow", box).run()

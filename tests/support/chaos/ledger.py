"""A tool server with one tool that writes to a file: an effect outside of every workspace.

python -m tests.support.chaos.ledger FILE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from uuid import uuid4

from banksman.sdk import ToolServer, tool
from tests.support.polling import scripted_delay


def main(file: Path) -> None:
    """Serve until SIGINT or SIGTERM."""

    @tool(requires_approval=False)
    async def enter(marker: str, seconds: float = 0.0) -> str:
        """Enter a marker into the ledger.

        Args:
            marker: The text to enter.
            seconds: The duration of the call in seconds.
        """
        await scripted_delay(seconds)
        with file.open("a", encoding="utf-8") as ledger:
            ledger.write(f"{marker} {uuid4().hex} {time.time()}\n")
        return "entered"

    ToolServer("ledger", [enter]).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

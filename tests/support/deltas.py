"""What a client would see of replies while they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Shown:
    """Takes the deltas of a provider, and keeps what was begun and then sent again."""

    message: str = ""
    reasoning: str = ""
    abandoned: list[str] = field(default_factory=list[str])
    """The text before each restart."""

    async def write(self, kind: Literal["message", "reasoning"], text: str) -> None:
        """Take the next piece."""
        if not text:
            raise AssertionError("an empty delta")
        if kind == "message":
            self.message += text
        else:
            self.reasoning += text

    async def restart(self) -> None:
        """Begin again."""
        self.abandoned.append(self.message)
        self.message = self.reasoning = ""

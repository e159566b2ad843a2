"""The text that a client sees while a provider streams a reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from banksman.contracts.live_output import ModelPause


@dataclass
class Shown:
    """Receives the deltas of a provider, and records text that a restart replaced."""

    message: str = ""
    reasoning: str = ""
    pauses: list[ModelPause] = field(default_factory=list[ModelPause])
    abandoned: list[str] = field(default_factory=list[str])
    """The text before each restart."""

    async def write(self, kind: Literal["message", "reasoning"], text: str) -> None:
        """Append the next piece."""
        if not text:
            raise AssertionError("an empty delta")
        if kind == "message":
            self.message += text
        else:
            self.reasoning += text

    async def waiting(self, pause: ModelPause) -> None:
        """Record a pause before another attempt."""
        self.pauses.append(pause)

    async def restart(self) -> None:
        """Discard the text so far: the provider sends it again."""
        self.abandoned.append(self.message)
        self.message = self.reasoning = ""

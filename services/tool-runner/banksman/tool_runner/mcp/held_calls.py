"""Calls that wait for what their server requests from a user (elicitation). Importing this imports no SDK.

A call that waits ends its attempt, so that it occupies neither a place of the runner nor an agent. The next
attempt brings the user's answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from banksman.contracts.approvals import InputResolved
from banksman.contracts.tools import AskedInput
from banksman.runtime.redaction import Redaction
from banksman.tool_runner.sandbox.base import cancel

if TYPE_CHECKING:
    from banksman.tool_runner.mcp.servers import McpCall

MAX_QUESTIONS: Final = 10
"""Maximum number of values that a server requests during one call."""
GRACE_S: Final = 60.0
"""Seconds after the expiry of a request in which the next attempt of the call may arrive."""


@dataclass
class Questions:
    """What the server of a call requests, one value at a time."""

    secrets: Redaction
    wait_s: float
    """Seconds within which a user may answer."""
    asked: AskedInput | None = None
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a question is open."""
    _answer: asyncio.Future[InputResolved] | None = None
    _number: int = 0

    async def ask(self, asked: AskedInput) -> InputResolved | None:
        """Return the user's answer; None if another question is open, or there were too many."""
        if self.asked is not None or self._number == MAX_QUESTIONS:
            return None
        self._number += 1
        self.asked, self._answer = asked, asyncio.get_running_loop().create_future()
        self.came.set()
        try:
            return await self._answer
        finally:
            self.asked = None
            self.came.clear()

    def reply(self, answer: InputResolved) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
            # Before the server's next message: the call waits no longer.
            self.came.clear()


Key = tuple[str, str]
"""Tenant and id of a call."""


@dataclass
class HeldCalls:
    _held: dict[Key, tuple[McpCall, asyncio.TimerHandle]] = field(
        default_factory=lambda: dict[Key, "tuple[McpCall, asyncio.TimerHandle]"]()
    )

    def hold(self, key: Key, call: McpCall, wait_s: float) -> None:
        """Keep a call until it is taken, for at most `wait_s` seconds."""
        end = asyncio.get_running_loop().call_later(wait_s + GRACE_S, self.end, key)
        self._held[key] = call, end

    def take(self, key: Key) -> McpCall | None:
        call, timer = self._held.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return call

    def end(self, key: Key) -> None:
        """Cancel a call that is held; do nothing for another one."""
        call = self.take(key)
        if call is not None and call.performing is not None:
            call.performing.cancel()

    async def close(self) -> None:
        calls = [call for key in list(self._held) if (call := self.take(key)) is not None]
        if tasks := [call.performing for call in calls if call.performing is not None]:
            await cancel(*tasks)

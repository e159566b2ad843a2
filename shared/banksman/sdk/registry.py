"""The registry of tools, as a tool server asks it."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.envelope import RemoteError, answer
from banksman.contracts import subjects
from banksman.contracts.registry import ListedTool, RegisterTool, ToolList, ToolRegistration, WithdrawTool
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.tools import AnyTool

ANSWER_S = 5.0
"""Seconds to wait for one answer."""
BUDGET_S = 30.0
"""Seconds that a request is tried: the registry may come up later than its servers."""
PAUSE_S = 0.5


class Registry:
    """Requests in the name of one server. All raise `Unavailable` when nobody answered within 30 seconds."""

    def __init__(self, bus: Bus, server: str) -> None:
        self._bus = bus
        self._server = server

    async def register(self, tools: Iterable[AnyTool]) -> str | None:
        """Register tools; returns the tenant whose models they are for, None for everybody's.

        Raises:
            RemoteError: one was refused; those before it are registered.
        """
        tenant = None
        for one in tuple(tools):
            definition = one.definition.model_copy(update={"server": self._server})
            reply = await self._ask("register", RegisterTool(definition=definition))
            tenant = ToolRegistration.model_validate_json(reply).tenant
        return tenant

    async def withdraw(self, name: str) -> None:
        """Take a registration back.

        Raises:
            RemoteError: it is not this server's.
        """
        await self._ask("withdraw", WithdrawTool(name=name, server=self._server))

    async def list(self) -> tuple[ListedTool, ...]:
        """All that this account's models may call."""
        return ToolList.model_validate_json(await self._ask("list", None)).tools

    async def _ask(self, action: str, body: BaseModel | None) -> bytes:
        subject = subjects.registry("tool", action)
        data = body.model_dump_json().encode() if body is not None else b""

        async def attempt() -> bytes:
            await self._bus.wait_connected()
            return answer(await self._bus.request(subject, data, ANSWER_S))

        def again(error: Exception) -> bool:
            return error.retryable if isinstance(error, RemoteError) else self._bus.may_recover(error)

        return await retry(
            attempt,
            again=again,
            backoff=Backoff(PAUSE_S, PAUSE_S),
            budget_s=BUDGET_S,
            failure=f"{subject}: no response",
        )

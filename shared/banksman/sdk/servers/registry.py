"""Requests of tool and workflow servers to the registries."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.errors import RemoteError, checked_reply
from banksman.contracts import subjects
from banksman.contracts.registry import ListedTool, RegisterTool, ToolList, ToolRegistration, WithdrawTool
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.tools import AnyTool

REPLY_TIMEOUT_S = 5.0
"""Timeout of one request in seconds."""
BUDGET_S = 30.0
"""Seconds for which a request is retried, because the registry may start after the tool servers."""
PAUSE_S = 0.5


class RegistryClient:
    """Requests of one server. All raise `Unavailable` if the registry does not respond within 30 seconds."""

    def __init__(self, bus: Bus, server: str) -> None:
        self._bus = bus
        self._server = server

    async def register(self, tools: Iterable[AnyTool]) -> str | None:
        """Register tools; return the tenant whose models may call them, None for all."""
        tenant = None
        for tool in tuple(tools):
            definition = tool.definition.model_copy(update={"server": self._server})
            reply = await self._request("register", RegisterTool(definition=definition))
            tenant = ToolRegistration.model_validate_json(reply).tenant
        return tenant

    async def withdraw(self, name: str) -> None:
        await self._request("withdraw", WithdrawTool(name=name, server=self._server))

    async def list(self) -> tuple[ListedTool, ...]:
        return ToolList.model_validate_json(await self._request("list", None)).tools

    async def _request(self, action: str, body: BaseModel | None) -> bytes:
        data = body.model_dump_json().encode() if body is not None else b""
        return await request_registry(self._bus, subjects.registry("tool", action), data)


async def request_registry(bus: Bus, subject: str, data: bytes) -> bytes:
    """Return the body of the reply; raise `RemoteError` if refused, `Unavailable` after `BUDGET_S`."""

    async def attempt() -> bytes:
        await bus.wait_connected()
        return checked_reply(await bus.request(subject, data, REPLY_TIMEOUT_S))

    def again(error: Exception) -> bool:
        return error.retryable if isinstance(error, RemoteError) else bus.may_recover(error)

    return await retry(
        attempt,
        again=again,
        backoff=Backoff(PAUSE_S, PAUSE_S),
        budget_s=BUDGET_S,
        failure=f"{subject}: no response",
    )

"""What tool servers and workflow servers share: the connection, the registry, and the end by a signal."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from pydantic import BaseModel

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import RemoteError, checked_reply
from banksman.contracts import subjects
from banksman.contracts.ids import check_token
from banksman.runtime import event_loop
from banksman.runtime.backoff import Backoff, retry
from banksman.sdk.local import nats_settings

REPLY_TIMEOUT_S = 5.0
"""Timeout of one request in seconds."""
BUDGET_S = 30.0
"""Seconds for which a request is retried, because the registry may start after the servers."""
PAUSE_S = 0.5


class RegisteredServer(ABC):
    """A process that registers what it serves. A context manager, which serves while the block runs."""

    kind: ClassVar[Literal["tool", "workflow"]]

    def __init__(self, name: str, nats: NatsSettings | None) -> None:
        self.name = check_token(name, "name")
        self._nats = nats
        self._stop = asyncio.Event()
        self._connected: Bus | None = None

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM.

        Raises:
            RemoteError: The registry refused a tool or a workflow, for example because another server has its
                name.
            Unavailable: NATS or the registry is unreachable.
        """
        event_loop.run(self._until_signalled())

    async def _until_signalled(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        await self._until_stopped()

    @abstractmethod
    async def _until_stopped(self) -> None: ...

    @property
    def _title(self) -> str:
        return f"{self.kind} server {self.name}"

    @property
    def _bus(self) -> Bus:
        if self._connected is None:
            raise RuntimeError(
                f"{self.kind} server {self.name!r} is not connected: use it as a context manager"
            )
        return self._connected

    async def _connect(self) -> Bus:
        prefix = f"_INBOX_{self.kind}-server-{self.name}"
        settings = self._nats or nats_settings()
        self._connected = await Bus(settings, name=self._title, inbox_prefix=prefix).open()
        return self._connected

    async def _request(self, action: str, body: BaseModel | None = None) -> bytes:
        """Return the registry's reply; raise `RemoteError` if refused, `Unavailable` after `BUDGET_S`."""
        bus, subject = self._bus, subjects.registry(self.kind, action)
        data = body.model_dump_json().encode() if body is not None else b""

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

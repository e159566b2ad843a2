"""What tool servers and workflow servers share: the connection, the registry, and the end by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import BaseModel

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import RemoteError, checked_reply
from banksman.bus.first_connection import keep_connecting
from banksman.contracts import subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import check_token
from banksman.runtime import event_loop
from banksman.runtime.backoff import Backoff, retry
from banksman.runtime.scope import Scoped
from banksman.runtime.waits import set_within
from banksman.sdk.local import nats_settings

logger = logging.getLogger(__name__)

REPLY_TIMEOUT_S = 5.0
"""Timeout of one request in seconds."""
BUDGET_S = 30.0
"""Seconds for which a request is retried, except the first registration."""
PAUSE_S = 0.5
WARN_AFTER_S = 5.0
"""Seconds without a reply after which a request is reported: all processes of a system start together."""


class RegisteredServer(Scoped):
    """A process that registers what it serves. A context manager, which serves while the block runs."""

    kind: ClassVar[Literal["tool", "workflow"]]

    def __init__(self, name: str, nats: NatsSettings | None) -> None:
        self.name = check_token(name, "name")
        self._nats = nats
        self._stop = asyncio.Event()
        self._connected: Bus | None = None
        self._following: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM. Waits for a system that has not started yet.

        Raises:
            RemoteError: The registry refused a tool or a workflow, for example because another server has its
                name.
            Unavailable: The connection to NATS is permanently closed.
        """
        event_loop.run(self._until_signalled())

    async def _until_signalled(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        try:
            await self._until_stopped()
        except Unavailable as error:
            if not self._stop.is_set():
                raise
            logger.warning("%s: %s", self._title, error)

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
        """Connect, however long the system takes to start; raise `Unavailable` if stopped before."""
        bus = await keep_connecting(self._new_bus, self._stop)
        if bus is None:
            raise Unavailable(f"{self._title} was stopped before it was connected")
        self._connected = bus
        self._following = asyncio.create_task(self._follow_address(bus))
        return bus

    def _new_bus(self) -> Bus:
        prefix = f"_INBOX_{self.kind}-server-{self.name}"
        return Bus(self._nats or nats_settings(), name=self._title, inbox_prefix=prefix)

    async def _follow_address(self, bus: Bus) -> None:
        """Reconnect at another address if `banksman up` starts there again."""
        known = bus.settings.urls
        while self._nats is None and not bus.closed.is_set():
            await set_within(bus.closed, PAUSE_S)
            if bus.connected or bus.closed.is_set():
                continue
            with contextlib.suppress(Unavailable):
                if (urls := nats_settings().urls) != known:
                    known = urls
                    bus.nc.set_server_pool(urls)

    async def _request(
        self, action: str, body: BaseModel | None = None, *, budget_s: float = BUDGET_S
    ) -> bytes:
        """Return the registry's reply; raise `RemoteError` if refused, `Unavailable` after `budget_s`."""
        bus, subject = self._bus, subjects.registry(self.kind, action)
        data = body.model_dump_json().encode() if body is not None else b""
        begun, warned = asyncio.get_running_loop().time(), False

        async def attempt() -> bytes:
            return checked_reply(await bus.request(subject, data, REPLY_TIMEOUT_S))

        def again(error: Exception) -> bool:
            nonlocal warned
            if not warned and asyncio.get_running_loop().time() - begun > WARN_AFTER_S:
                logger.warning("%s waits: %s", self._title, error)
                warned = True
            may = error.retryable if isinstance(error, RemoteError) else bus.may_recover(error)
            return may and not self._stop.is_set()

        return await retry(
            attempt,
            again=again,
            backoff=Backoff(PAUSE_S, PAUSE_S),
            budget_s=budget_s,
            failure=f"{subject}: no response",
        )

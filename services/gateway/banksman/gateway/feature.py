"""What a feature of the gateway consists of, and what it is built from."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from starlette.routing import BaseRoute

from banksman.bus.connection import Bus
from banksman.bus.secrets import SecretBox
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import ServiceMap
from banksman.gateway.settings import GatewayServiceSettings
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.ports import Clock
from banksman.runtime.background import Background


@dataclass(frozen=True, slots=True, kw_only=True)
class Groundwork:
    """What services are built from before NATS is connected."""

    settings: GatewayServiceSettings
    keys: Keys
    """The keys that the HTTP server checks."""
    background: Background
    dispatcher: Dispatcher
    stack: contextlib.AsyncExitStack
    """Closes the services, the newest first."""

    @property
    def services(self) -> ServiceMap:
        return self.dispatcher.services


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation(Groundwork):
    """What the services of all features are built from."""

    bus: Bus
    """A connection to NATS."""
    api: Bus
    """The connection of the NATS API, which a flood of requests may close."""
    clock: Clock
    """The broker's clock."""
    damaged: DamagedLogs
    """The logs that cannot be read."""

    @property
    def box(self) -> SecretBox:
        return SecretBox(self.settings.approvals.key())


async def _nothing(_base: Groundwork) -> None:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """A feature: the operations that clients request, and the services that perform them."""

    operations: Iterable[Operation] = ()
    build: Callable[[Foundation], Awaitable[None]] = _nothing
    """Builds the services and adds them. Raises `Unavailable` if NATS does not respond."""
    open: Callable[[Groundwork], Awaitable[None]] = _nothing
    """Builds the services that requests use before NATS is connected."""
    routes: tuple[BaseRoute, ...] = ()
    """Routes that are no operations of Banksman: files of the page, and requests that are forwarded."""
    forwards: bool = False
    """Whether the bodies of requests to `routes` are forwarded instead of parsed."""

"""Connections of the operator's two users: one in account APP, one in account RUN."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from banksman.bus.connection import Bus, NatsSettings
from banksman.contracts.errors import NotReady
from banksman.deployment import users
from banksman.deployment.streams import stream_info
from banksman.deployment.topology import StorageBudget, Topology, app_topology, run_topology
from banksman.deployment.users import inbox_prefix

T = TypeVar("T")


class BrokerAccess:
    def __init__(self, nats: NatsSettings, run_seed_file: Path | None, budget: StorageBudget) -> None:
        """Describe the connections; without `run_seed_file`, account RUN is left out."""
        self._nats = nats
        self._run_seed_file = run_seed_file
        self._app = app_topology(budget, replicas=nats.replicas)
        self._run = run_topology(budget, replicas=nats.replicas)

    @property
    def monitoring_url(self) -> str | None:
        return self._nats.monitoring_url

    async def in_app(self, act: Callable[[Bus], Awaitable[T]], *, needs: tuple[str, ...] = ()) -> T:
        """Call a function with a connection in APP; raise `NotReady` if a stream in `needs` is missing."""
        async with await _connect(users.OPERATOR, self._nats) as bus:
            for stream in needs:
                if await stream_info(bus, stream) is None:
                    raise NotReady(
                        f"stream {stream} is missing: `banksman streams provision` creates it, "
                        "`banksman restore` restores it with its messages"
                    )
            return await act(bus)

    async def in_each(self, act: Callable[[Bus, Topology], Awaitable[tuple[str, ...]]]) -> list[str]:
        """Call a function once per account and return all its lines without duplicates."""
        lines = list(await self.in_app(lambda bus: act(bus, self._app)))
        if self._run_seed_file is not None:
            settings = self._nats.model_copy(
                update={"nkey_seed_file": self._run_seed_file, "nkey_seed": None}
            )
            async with await _connect(users.OPERATOR_FILES, settings) as bus:
                lines += await act(bus, self._run)
        return list(dict.fromkeys(lines))


async def _connect(user: str, settings: NatsSettings) -> Bus:
    return await Bus.connect(settings, name=f"banksman-{user}", inbox_prefix=inbox_prefix(user))

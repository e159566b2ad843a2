"""The tools that a run may offer: the workspace's, and those that other processes registered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import TOOLS
from banksman.bus.watch import BucketView
from banksman.contracts.assistants import ToolSettings
from banksman.contracts.messages import Message, ToolMessage
from banksman.contracts.registry import ToolRegistration, visible_to
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.runs.placement import Placements

logger = logging.getLogger(__name__)

WORKSPACE_NAMES = frozenset(tool.name for tool in WORKSPACE_TOOLS)
"""No other tool may have one of these names."""
DEFAULT_AWAY_S = 15.0
"""Seconds that whoever serves a tool may take to restart before it counts as gone."""


class ToolCatalog:
    """What can be called now; as a context manager it watches the registry."""

    def __init__(
        self, bus: Bus, placements: Placements, *, enabled: bool, away_s: float = DEFAULT_AWAY_S
    ) -> None:
        """Describe it.

        Args:
            bus: The connection.
            placements: Who is there to call.
            enabled: False offers nothing.
            away_s: Seconds that whoever serves a tool counts as away, and not as gone.
        """
        self.registered = BucketView(Bucket(bus, TOOLS, ToolRegistration))
        self._placements = placements
        self._enabled = enabled
        self._away_s = away_s
        self._began_at = float("-inf")
        self._runner_served: bool | None = None
        """Whether the last runner that was seen took calls; None before any was."""

    async def __aenter__(self) -> Self:
        await self.registered.__aenter__()
        self._began_at = asyncio.get_running_loop().time()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.registered.__aexit__(kind, error, trace)

    def offered(
        self, tenant: str, settings: ToolSettings, history: Iterable[Message] = ()
    ) -> tuple[ToolDefinition, ...]:
        """The tools of a run: all that can be called now, or those of them that its assistant allows.

        A conversation that has used its workspace keeps the tools for it while the runner is away, as does
        every one while a runner restarts, or may do so: their calls wait for it. A conversation that has
        called a tool of a server keeps it likewise, for as long as the server is away and not gone.

        None are offered when tools are off for the system or the assistant, or none is left after the filter
        (R82, R84, R86).
        """
        if not (self._enabled and settings.enabled):
            return ()
        used = frozenset(message.name for message in history if isinstance(message, ToolMessage))
        workspace = WORKSPACE_TOOLS if self._runner_serves() or used & WORKSPACE_NAMES else ()
        served = (
            one.definition
            for one in self._registered(tenant)
            if self._served(one) or (one.definition.name in used and self._away(one))
        )
        tools = tuple(_allowed((*workspace, *served), settings))
        if not tools:
            logger.warning(
                "no tools are left to offer; the run goes on as plain text",
                extra={"allowed": settings.allowed_tools},
            )
        return tools

    def returning(self, tenant: str, settings: ToolSettings) -> tuple[ToolDefinition, ...]:
        """The tools of servers that are there, or away and not gone; a call waits for those that are away."""
        if not (self._enabled and settings.enabled):
            return ()
        away = (one.definition for one in self._registered(tenant) if self._served(one) or self._away(one))
        return tuple(_allowed(away, settings))

    def _registered(self, tenant: str) -> Iterator[ToolRegistration]:
        registered = visible_to(tenant, (entry.value for entry in self.registered.entries()))
        return (one for one in registered if one.definition.name not in WORKSPACE_NAMES)

    def _runner_serves(self) -> bool:
        runners = [lease for lease in self._placements.leases() if lease.workspaces]
        if runners:
            self._runner_served = any(lease.serving or lease.draining for lease in runners)
        if self._runner_served is None:
            # The only one may restart together with this process.
            return asyncio.get_running_loop().time() < self._began_at + self._away_s
        return self._runner_served

    def _served(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        instances = self._placements.instances(server, one.tenant) if server is not None else ()
        return any(instance.serving for instance in instances)

    def _away(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        return server is not None and self._placements.gone_s(server, one.tenant) < self._away_s


def _allowed(tools: Iterable[ToolDefinition], settings: ToolSettings) -> Iterator[ToolDefinition]:
    allowed = settings.allowed_tools
    return (tool for tool in tools if allowed is None or tool.name in allowed)

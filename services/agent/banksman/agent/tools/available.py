"""The tools that a run may offer: workspace tools and registered tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.names import TOOLS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.watch import BucketView
from banksman.contracts.assistants import ToolSettings
from banksman.contracts.messages import Message, ToolMessage
from banksman.contracts.registry import ToolRegistration, visible_to
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.runs.runners.placement import Placements

logger = logging.getLogger(__name__)

WORKSPACE_NAMES = frozenset(tool.name for tool in WORKSPACE_TOOLS)
"""Reserved names, which no other tool may have."""
DEFAULT_AWAY_S = 15.0
"""Seconds that a tool server may take to restart before its tools are withdrawn."""


class AvailableTools:
    """The tools that can be called now; as a context manager it watches the registry."""

    def __init__(
        self, bus: Bus, placements: Placements, *, enabled: bool, away_s: float = DEFAULT_AWAY_S
    ) -> None:
        """A tool server without a process counts as away for `away_s` seconds, and then as gone."""
        self.registered = BucketView(Bucket(bus, TOOLS, ToolRegistration))
        self._placements = placements
        self._enabled = enabled
        self._away_s = away_s
        self._began_at = float("-inf")
        self._runner_served: bool | None = None
        """Whether a runner accepted calls when one was last live; None before the first runner."""

    async def __aenter__(self) -> Self:
        await self.registered.__aenter__()
        self._began_at = asyncio.get_running_loop().time()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registered.__aexit__(None, None, None)

    def offered(
        self, tenant: str, settings: ToolSettings, history: Iterable[Message] = ()
    ) -> tuple[ToolDefinition, ...]:
        """Return the tools that a run offers: its assistant allows them, and they can be called now.

        A tool that the conversation has used is also offered while its runner or tool server is away: a call
        waits for its return. While a runner restarts, every conversation is offered the workspace tools.

        No tools are offered if they are disabled for the system or the assistant, or if the filter leaves
        none (R82, R84, R86).
        """
        if not (self._enabled and settings.enabled):
            return ()
        used = frozenset(message.name for message in history if isinstance(message, ToolMessage))
        workspace = WORKSPACE_TOOLS if self._runner_serves() or used & WORKSPACE_NAMES else ()
        served = (
            one.definition
            for one in self._registered(tenant, settings)
            if self._served(one) or (one.definition.name in used and self._away(one))
        )
        tools = (*(tool for tool in workspace if settings.allows(tool)), *served)
        if not tools:
            logger.warning(
                "no tools are left to offer; the run continues as plain text",
                extra={"allowed": settings.allowed_tools},
            )
        return tools

    def returning(self, tenant: str, settings: ToolSettings) -> tuple[ToolDefinition, ...]:
        """Return the tools of servers that are live or away; a call waits for a server that is away."""
        if not (self._enabled and settings.enabled):
            return ()
        allowed = self._registered(tenant, settings)
        return tuple(one.definition for one in allowed if self._served(one) or self._away(one))

    def _registered(self, tenant: str, settings: ToolSettings) -> Iterator[ToolRegistration]:
        registered = visible_to(tenant, (entry.value for entry in self.registered.entries()))
        return (
            one
            for one in registered
            if one.definition.name not in WORKSPACE_NAMES and settings.allows(one.definition)
        )

    def _runner_serves(self) -> bool:
        runners = [lease for lease in self._placements.leases() if lease.workspaces]
        if runners:
            self._runner_served = any(lease.serving or lease.draining for lease in runners)
        if self._runner_served is None:
            # The only runner may be restarting together with this process.
            return asyncio.get_running_loop().time() < self._began_at + self._away_s
        return self._runner_served

    def _served(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        if server is None:
            # A tool of an MCP server, which runners call.
            return self._runner_serves()
        return any(instance.serving for instance in self._placements.instances(server, one.tenant))

    def _away(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        return server is not None and self._placements.absent_s(server, one.tenant) < self._away_s

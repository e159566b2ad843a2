"""The tools that a run may offer: the workspace's, and those that other processes registered."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import TOOLS
from banksman.bus.watch import BucketView
from banksman.contracts.assistants import ToolSettings
from banksman.contracts.registry import ToolRegistration, visible_to
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.runs.placement import Placements

logger = logging.getLogger(__name__)

WORKSPACE_NAMES = frozenset(tool.name for tool in WORKSPACE_TOOLS)
"""No other tool may have one of these names."""


class ToolCatalog:
    """What can be called now; as a context manager it watches the registry."""

    def __init__(self, bus: Bus, placements: Placements, *, enabled: bool) -> None:
        self.registered = BucketView(Bucket(bus, TOOLS, ToolRegistration))
        self._placements = placements
        self._enabled = enabled

    async def __aenter__(self) -> Self:
        await self.registered.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.registered.__aexit__(kind, error, trace)

    def offered(self, tenant: str, settings: ToolSettings) -> tuple[ToolDefinition, ...]:
        """The tools of a run: all that can be called now, or those of them that its assistant allows.

        None are offered when tools are off for the system or the assistant, or none is left after the filter
        (R82, R84, R86).
        """
        if not (self._enabled and settings.enabled):
            return ()
        allowed = settings.allowed_tools
        tools = tuple(tool for tool in self._callable(tenant) if allowed is None or tool.name in allowed)
        if not tools:
            logger.warning(
                "no tools are left to offer; the run goes on as plain text", extra={"allowed": allowed}
            )
        return tools

    def _callable(self, tenant: str) -> tuple[ToolDefinition, ...]:
        runner = any(lease.serving and lease.workspaces for lease in self._placements.leases())
        workspace = WORKSPACE_TOOLS if runner else ()
        served = (
            one.definition
            for one in visible_to(tenant, (entry.value for entry in self.registered.entries()))
            if self._served(one)
        )
        return (*workspace, *(tool for tool in served if tool.name not in WORKSPACE_NAMES))

    def _served(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        instances = self._placements.instances(server, one.tenant) if server is not None else ()
        return any(instance.serving for instance in instances)

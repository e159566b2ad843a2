"""The tools that a workflow may call: workspace tools and registered tools."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.names import TOOLS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.watch import BucketView
from banksman.contracts.registry import ToolRegistration, visible_to
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS


class Tools:
    """Definitions by name; as a context manager it watches the registry."""

    def __init__(self, bus: Bus) -> None:
        self._registered = BucketView(Bucket(bus, TOOLS, ToolRegistration))

    async def __aenter__(self) -> Self:
        await self._registered.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._registered.__aexit__(kind, error, trace)

    def find(self, tenant: str, name: str) -> ToolDefinition | None:
        """Return the definition of a tool that a tenant may call; None if no tool has this name."""
        registered = (entry.value for entry in self._registered.entries())
        others = (one.definition for one in visible_to(tenant, registered))
        return next((tool for tool in (*WORKSPACE_TOOLS, *others) if tool.name == name), None)

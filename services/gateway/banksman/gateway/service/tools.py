"""The tools that a tenant's models may call, for enhanced prompts and for checks of edited arguments."""

from __future__ import annotations

from collections.abc import Iterable

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import TOOLS
from banksman.contracts.registry import ToolRegistration, visible_to
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.runs.placement import Placements


class Tools:
    """The built-in workspace tools, and the tools that tool servers registered."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, TOOLS, ToolRegistration)

    async def registered(self, tenant: str) -> tuple[ToolDefinition, ...]:
        """Return all tools of a tenant. A workspace tool wins over a registered one of the same name."""
        return _with_workspace_tools(await self._visible(tenant))

    async def available(self, tenant: str, placements: Placements) -> tuple[ToolDefinition, ...]:
        """Return the tools that a run would be offered now: registered ones only while a server is alive."""
        served = [one for one in await self._visible(tenant) if _is_served(one, placements)]
        return _with_workspace_tools(served)

    async def _visible(self, tenant: str) -> tuple[ToolRegistration, ...]:
        return visible_to(tenant, [entry.value async for entry in self._bucket.entries()])


def _with_workspace_tools(registered: Iterable[ToolRegistration]) -> tuple[ToolDefinition, ...]:
    found = {tool.name: tool for tool in WORKSPACE_TOOLS}
    for one in registered:
        found.setdefault(one.definition.name, one.definition)
    return tuple(found.values())


def _is_served(one: ToolRegistration, placements: Placements) -> bool:
    server = one.definition.server
    instances = () if server is None else placements.instances(server, one.tenant)
    return any(instance.serving for instance in instances)

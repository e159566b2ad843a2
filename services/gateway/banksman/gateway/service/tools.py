"""The tools that a tenant's models may call, as prompts and approvals need to know them."""

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
    """The runners' tools, and those that tool servers registered."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, TOOLS, ToolRegistration)

    async def offered(self, tenant: str) -> tuple[ToolDefinition, ...]:
        """All tools of a tenant; the runners' come first and keep their names."""
        return self._with_workspace(await self._visible(tenant))

    async def callable_now(self, tenant: str, placements: Placements) -> tuple[ToolDefinition, ...]:
        """Those of them that a run would be offered: the registered ones only while their server is there."""
        served = [one for one in await self._visible(tenant) if _is_served(one, placements)]
        return self._with_workspace(served)

    async def _visible(self, tenant: str) -> tuple[ToolRegistration, ...]:
        return visible_to(tenant, [entry.value async for entry in self._bucket.entries()])

    def _with_workspace(self, registered: Iterable[ToolRegistration]) -> tuple[ToolDefinition, ...]:
        found = {tool.name: tool for tool in WORKSPACE_TOOLS}
        for one in registered:
            found.setdefault(one.definition.name, one.definition)
        return tuple(found.values())


def _is_served(one: ToolRegistration, placements: Placements) -> bool:
    server = one.definition.server
    instances = () if server is None else placements.instances(server, one.tenant)
    return any(instance.serving for instance in instances)

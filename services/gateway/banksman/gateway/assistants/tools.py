"""The tools that a tenant's models may call, for enhanced prompts, edited arguments and administrators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from banksman.bus.connection import Bus
from banksman.bus.names import TOOLS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import NotFound
from banksman.contracts.registry import ToolRegistration, ToolView, ToolViews, tool_view, visible_to
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_NAMES
from banksman.gateway.assistants.tenant_store import POLICY, PolicyStore
from banksman.gateway.operation.caller import ADMIN
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.runs.runners.placement import Placements
from banksman.runtime.search import SearchSettings

operations = Operations("tools", right=ADMIN)


class Tools:
    """The tools of tenants. No tool is called (R42, R43)."""

    def __init__(
        self,
        bus: Bus,
        placements: Placements,
        policies: PolicyStore,
        *,
        enabled: bool,
        search: SearchSettings,
    ) -> None:
        self._bucket = Bucket(bus, TOOLS, ToolRegistration)
        self._placements = placements
        self._policies = policies
        self._enabled = enabled
        """False lists nothing: tools are off for the whole system."""
        self._search = search

    async def registered(self, tenant: str) -> tuple[ToolDefinition, ...]:
        """Return all tools of a tenant. A workspace tool wins over a registered one of the same name."""
        return await self._with_workspace_tools(tenant, await self._visible(tenant))

    async def available(self, tenant: str) -> tuple[ToolDefinition, ...]:
        """Return the tools that a run would be offered now: registered tools only while a server is alive."""
        served = [one for one in await self._visible(tenant) if self._is_served(one)]
        return await self._with_workspace_tools(tenant, served)

    @operations.add("tool.list", "GET /context/tools")
    async def list_tools(self: Service, caller: CallerDep) -> ToolViews:
        """List the tools that the tenant's models may call, the built-in ones first (R43)."""
        if not self._enabled:
            return ToolViews.of(())
        runs = self._runs()
        builtin = [tool_view(tool, None, available=runs) for tool in await self._builtin(caller.tenant)]
        registered = [
            tool_view(one.definition, one.tenant, available=self._is_served(one))
            for one in await self._visible(caller.tenant)
            if one.definition.name not in WORKSPACE_NAMES
        ]
        return ToolViews.of((*builtin, *registered))

    @operations.add("tool.read", "GET /context/tools/{name}")
    async def read_tool(self: Service, name: str, caller: CallerDep) -> ToolView:
        """Read a tool that the tenant's models may call (R42)."""
        listed = await self.list_tools(caller)
        found = next((tool for tool in listed.items if tool.name == name), None)
        if found is None:
            raise NotFound("tool", name[:64])
        return found

    async def _visible(self, tenant: str) -> tuple[ToolRegistration, ...]:
        return visible_to(tenant, [entry.value async for entry in self._bucket.entries()])

    def _is_served(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        if server is None:
            # A tool of a server of the Model Context Protocol, which runners call.
            return self._runs()
        return any(instance.serving for instance in self._placements.instances(server, one.tenant))

    def _runs(self) -> bool:
        return any(lease.workspaces and lease.serving for lease in self._placements.leases())

    async def _builtin(self, tenant: str) -> tuple[ToolDefinition, ...]:
        policy = await self._policies.in_use(tenant, POLICY)
        return self._search.tools(tenant, policy.search)

    async def _with_workspace_tools(
        self, tenant: str, registered: Iterable[ToolRegistration]
    ) -> tuple[ToolDefinition, ...]:
        found = {tool.name: tool for tool in await self._builtin(tenant)}
        for one in registered:
            found.setdefault(one.definition.name, one.definition)
        return tuple(found.values())


Service = Annotated[Tools, provided(Tools)]

"""The tools that a tenant's models may call, for those who administer it. No endpoint calls a tool."""

from __future__ import annotations

from banksman.contracts.tool_views import ToolView, ToolViews
from banksman.gateway.service.dependencies import AdminDep, ServiceDep
from banksman.gateway.service.routing import router

routes = router("tools")


@routes.get("/context/tools")
async def list_tools(gateway: ServiceDep, caller: AdminDep) -> ToolViews:
    """List the tools that the tenant's models may call, the built-in ones first (R43)."""
    return ToolViews.of(await gateway.tools.list(caller.tenant))


@routes.get("/context/tools/{name}")
async def read_tool(name: str, gateway: ServiceDep, caller: AdminDep) -> ToolView:
    """Read a tool that the tenant's models may call (R42)."""
    return await gateway.tools.get(caller.tenant, name)

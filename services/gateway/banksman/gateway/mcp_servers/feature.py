"""Builds the servers of the Model Context Protocol whose tools a tenant's models may call."""

from __future__ import annotations

from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.mcp_servers.operations import operations
from banksman.gateway.mcp_servers.servers import ConfiguredServers
from banksman.gateway.mcp_servers.sign_in_operations import operations as sign_ins
from banksman.gateway.mcp_servers.sign_ins import McpSignIns
from banksman.runs.runners.placement import Placements


async def build(base: Foundation) -> None:
    """Build the servers and the sign-ins at them."""
    servers = ConfiguredServers(base.bus, base.services[Placements], base.clock, base.box)
    base.services.add(servers, McpSignIns(servers, base.clock))


FEATURE = Feature((*operations, *sign_ins), build)

"""Clients of MCP servers whose sessions end with a block."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.tool_runner.conftest import TLS

from banksman.quotas.places import Shares
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.mcp.open_sessions import OpenSessions
from banksman.tool_runner.mcp.servers import McpClient
from banksman.tool_runner.sandbox.base import Sandbox
from banksman.tool_runner.settings import RunnerLimits


@asynccontextmanager
async def mcp_client(
    limits: RunnerLimits, sandbox: Sandbox | None = None, private: tuple[str, ...] = ()
) -> AsyncGenerator[McpClient]:
    """Yield a client that may reach the private addresses."""
    egress = Egress(limits.fetch, hosts=HostRules(), private=private, ssl_context=TLS)
    sessions = OpenSessions(Shares(limits.sandbox.max_sessions), limits.sandbox.session_idle_s)
    client = McpClient(sandbox, egress, limits, sessions)
    try:
        yield client
    finally:
        await client.close()

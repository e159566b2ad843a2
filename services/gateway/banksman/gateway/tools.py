"""The tools that a tenant's models may call, as prompts and approvals need to know them."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import TOOLS
from banksman.contracts.registry import ToolRegistration, visible_to
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS


class Tools:
    """The runners' tools, and those that tool servers registered."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, TOOLS, ToolRegistration)

    async def offered(self, tenant: str) -> tuple[ToolDefinition, ...]:
        """All tools of a tenant; the runners' come first and keep their names."""
        found = {tool.name: tool for tool in WORKSPACE_TOOLS}
        registered = [entry.value async for entry in self._bucket.entries()]
        for one in visible_to(tenant, registered):
            found.setdefault(one.definition.name, one.definition)
        return tuple(found.values())

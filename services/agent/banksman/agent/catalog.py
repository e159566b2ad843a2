"""The tools that a run may offer: the workspace's, and those that other processes registered."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import TOOLS
from banksman.bus.watch import BucketView
from banksman.contracts.assistants import ToolSettings
from banksman.contracts.messages import Message, ToolMessage
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
        self._runner_served = False

    async def __aenter__(self) -> Self:
        await self.registered.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.registered.__aexit__(kind, error, trace)

    def offered(
        self, tenant: str, settings: ToolSettings, history: Iterable[Message] = ()
    ) -> tuple[ToolDefinition, ...]:
        """The tools of a run: all that can be called now, or those of them that its assistant allows.

        A conversation that has used its workspace keeps the tools for it while the runner is away, as does
        every one while a runner that was here restarts: their calls wait for it.

        None are offered when tools are off for the system or the assistant, or none is left after the filter
        (R82, R84, R86).
        """
        if not (self._enabled and settings.enabled):
            return ()
        allowed = settings.allowed_tools
        tools = tuple(
            tool for tool in self._callable(tenant, history) if allowed is None or tool.name in allowed
        )
        if not tools:
            logger.warning(
                "no tools are left to offer; the run goes on as plain text", extra={"allowed": allowed}
            )
        return tools

    def _callable(self, tenant: str, history: Iterable[Message]) -> tuple[ToolDefinition, ...]:
        workspace = WORKSPACE_TOOLS if self._runner_serves() or _used_workspace(history) else ()
        served = (
            one.definition
            for one in visible_to(tenant, (entry.value for entry in self.registered.entries()))
            if self._served(one)
        )
        return (*workspace, *(tool for tool in served if tool.name not in WORKSPACE_NAMES))

    def _runner_serves(self) -> bool:
        runners = [lease for lease in self._placements.leases() if lease.workspaces]
        if runners:
            self._runner_served = any(lease.serving for lease in runners)
        return self._runner_served

    def _served(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        instances = self._placements.instances(server, one.tenant) if server is not None else ()
        return any(instance.serving for instance in instances)


def _used_workspace(history: Iterable[Message]) -> bool:
    return any(isinstance(message, ToolMessage) and message.name in WORKSPACE_NAMES for message in history)

"""The tools that a run may offer, and the registry of those that tool servers offer while they are live."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

from banksman.bus.connection import Bus
from banksman.bus.names import TOOLS
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.assistants import ToolSettings
from banksman.contracts.errors import BadInput, BanksmanError, CallerMistake, Conflict, NotFound, Overloaded
from banksman.contracts.mcp import RefusedTool, mcp_server_of
from banksman.contracts.messages import Message, ToolMessage
from banksman.contracts.registry import (
    ListedTool,
    OfferedTools,
    OfferTools,
    ToolList,
    ToolRegistration,
    visible_to,
)
from banksman.contracts.subjects import ANY
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_NAMES
from banksman.quotas.stored import MessageRoom
from banksman.runs.ports import Clock
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runtime.scope import Scoped
from banksman.runtime.search import SearchSettings

logger = logging.getLogger(__name__)

DEFAULT_AWAY_S = 15.0
"""Seconds that a tool server may take to restart before its tools are withdrawn."""


class AvailableTools(Scoped):
    def __init__(
        self,
        bus: Bus,
        placements: Placements,
        *,
        enabled: bool,
        search: SearchSettings | None = None,
        away_s: float = DEFAULT_AWAY_S,
    ) -> None:
        """A tool server without a process counts as away for `away_s` seconds, and then as gone."""
        self.registered = BucketView(Bucket(bus, TOOLS, ToolRegistration))
        self._placements = placements
        self._enabled = enabled
        self._search = search or SearchSettings()
        self._away_s = away_s
        self._began_at = float("-inf")
        self._runner_served: bool | None = None
        """Whether a runner accepted calls when one was last live; None before the first runner."""

    async def _enter(self, scope: AsyncExitStack) -> None:
        await scope.enter_async_context(self.registered)
        self._began_at = asyncio.get_running_loop().time()

    def offered(
        self, tenant: str, settings: ToolSettings, history: Iterable[Message] = ()
    ) -> tuple[ToolDefinition, ...]:
        """Return the tools that a run offers: its assistant allows them, and they can be called now.

        A tool that the conversation has used is also offered while its runner or tool server is away: a call
        waits for its return. While a runner restarts, every conversation is offered the workspace tools.

        No tools are offered if they are disabled for the system or the assistant, or if the filter leaves
        none (R82, R84, R86).
        """
        if not (self._enabled and settings.enabled):
            return ()
        used = frozenset(message.name for message in history if isinstance(message, ToolMessage))
        workspace = (
            self._search.tools(tenant, settings.search)
            if self._runner_serves() or used & WORKSPACE_NAMES
            else ()
        )
        served = (
            one.definition
            for one in self._registered(tenant, settings)
            if self._served(one) or (one.definition.name in used and self._away(one))
        )
        tools = (*(tool for tool in workspace if settings.allows(tool)), *served)
        if not tools:
            logger.warning(
                "no tools are left to offer; the run continues as plain text",
                extra={"allowed": settings.allowed_tools},
            )
        return tools

    def returning(self, tenant: str, settings: ToolSettings) -> tuple[ToolDefinition, ...]:
        """Return the tools of servers that are live or away; a call waits for a server that is away."""
        if not (self._enabled and settings.enabled):
            return ()
        allowed = self._registered(tenant, settings)
        return tuple(one.definition for one in allowed if self._served(one) or self._away(one))

    def _registered(self, tenant: str, settings: ToolSettings) -> Iterator[ToolRegistration]:
        registered = visible_to(tenant, (entry.value for entry in self.registered.entries()))
        return (
            one
            for one in registered
            if one.definition.name not in WORKSPACE_NAMES and settings.allows(one.definition)
        )

    def _runner_serves(self) -> bool:
        runners = [lease for lease in self._placements.leases() if lease.workspaces]
        if runners:
            self._runner_served = any(lease.serving or lease.draining for lease in runners)
        if self._runner_served is None:
            # The only runner may be restarting together with this process.
            return asyncio.get_running_loop().time() < self._began_at + self._away_s
        return self._runner_served

    def _served(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        if server is None:
            # A tool of an MCP server, which runners call.
            return self._runner_serves()
        return any(instance.serving for instance in self._placements.instances(server, one.tenant))

    def _away(self, one: ToolRegistration) -> bool:
        server = one.definition.server
        return server is not None and self._placements.absent_s(server, one.tenant) < self._away_s


GRACE_S = 5.0
"""Seconds after a registration within which its server must take its first lease."""
SWEEP_EVERY_S = 2.0
MAX_TOOLS = 500
"""Maximum number of tools of one tenant, and of tools for all tenants."""


class ToolRegistry(Scoped):
    """Registers, withdraws and lists tools.

    As a context manager it also withdraws the tools of servers without a live process. Every write is a
    compare-and-set, so any number of agents may serve it.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        registered: BucketView[ToolRegistration],
        placements: Placements,
        schemas: SchemaChecker,
        *,
        search: SearchSettings | None = None,
        away_s: float = DEFAULT_AWAY_S,
    ) -> None:
        """All agents must share the `clock`, which dates registrations."""
        self._clock = clock
        self._away_s = away_s
        self._bucket = Bucket(bus, TOOLS, ToolRegistration)
        self._registered = registered
        self._placements = placements
        self._schemas = schemas
        self._search = search or SearchSettings()
        self._background = bus.background
        self._room = MessageRoom(bus)

    def list(self, tenant: str | None) -> ToolList:
        """Return the tools that a tenant's models may call; for None, the tools of every tenant's models.

        The built-in ones come first; they have no server, and their instances are the live runners.
        """
        entries = (entry.value for entry in self._registered.entries())
        found = visible_to(tenant, entries) if tenant else tuple(one for one in entries if one.tenant is None)
        runners = sum(lease.workspaces and lease.serving for lease in self._placements.leases())
        workspace = self._search.tools(tenant or "")
        builtin = (ListedTool(tenant=None, definition=tool, instances=runners) for tool in workspace)
        own = (self._listed(one) for one in found if one.definition.name not in WORKSPACE_NAMES)
        return ToolList(tools=(*builtin, *own))

    async def register(self, tenant: str | None, definition: ToolDefinition) -> ToolRegistration:
        """Register a tool for a tenant, or for all tenants (None). Only the server of a tool may replace it.

        Raises:
            BadInput: The definition is invalid.
            Conflict: Another server has registered a tool of that name, which stays unchanged.
            Overloaded: Too many tools are registered, or they take too many bytes.
        """
        _check_definition(definition)
        await self._schemas.check_schema(tenant or "", definition.input_schema)
        return await self._store(tenant, definition)

    async def _store(self, tenant: str | None, definition: ToolDefinition) -> ToolRegistration:
        self._check(tenant, definition)
        key = _key(tenant, definition.name)
        # Repeat when another agent changed the entry between the read and the write.
        while True:
            wanted = ToolRegistration(tenant=tenant, definition=definition, registered_at=self._clock.now())
            entry = await self._bucket.get(key)
            if tenant is not None and (entry is None or entry.value.definition != definition):
                await self._take_room(tenant, len(wanted.model_dump_json()))
            if entry is None:
                written = await self._bucket.create(key, wanted)
            elif entry.value.definition == definition and not self._abandoned(entry):
                return entry.value
            elif entry.value.definition.server == definition.server or self._abandoned(entry):
                # An equal but abandoned entry is also written: the sweep does not withdraw the new revision.
                written = await self._bucket.update(key, wanted, entry.revision)
            else:
                raise _taken(entry.value)
            if written is not None:
                logger.info("tool registered", extra={"tool": key, "server": definition.server})
                return wanted

    async def offer(self, tenant: str, request: OfferTools) -> OfferedTools:
        """Offer exactly these tools of an MCP server; return the refused ones with their reasons.

        Runners call these tools, so their server has no process here, and they stay until the next offer.
        """
        refused: list[RefusedTool] = []
        for definition in request.definitions:
            try:
                await self._offer(tenant, request.server, definition)
            except (CallerMistake, Overloaded) as error:
                refused.append(RefusedTool(name=definition.name, reason=str(error)))
        offered = {one.name for one in request.definitions} - {one.name for one in refused}
        async for entry in self._bucket.entries(tenant):
            one = entry.value.definition
            if _is_of(request.server, one) and one.name not in offered:
                await self._bucket.delete(entry.key, revision=entry.revision)
        return OfferedTools(refused=tuple(refused))

    async def _offer(self, tenant: str, server: str, definition: ToolDefinition) -> None:
        if not _is_of(server, definition):
            raise BadInput("definitions.name", definition.name, f"a name that begins with {server}__")
        await self._schemas.check_schema(tenant, definition.input_schema)
        await self._store(tenant, definition)

    async def withdraw(self, tenant: str | None, name: str, server: str) -> ToolRegistration:
        """Withdraw a tool; raise `NotFound` if this server has registered none of that name."""
        key = _key(tenant, name)
        while True:
            entry = await self._bucket.get(key)
            if entry is None or entry.value.definition.server != server:
                raise NotFound("tool", name)
            if await self._bucket.delete(key, revision=entry.revision):
                return entry.value

    async def _enter(self, scope: AsyncExitStack) -> None:
        wait = partial(asyncio.sleep, SWEEP_EVERY_S)
        scope.push_async_callback(self._background.repeat("tool-registry", self._sweep, wait=wait).stop)

    async def _sweep(self) -> None:
        # Each server is looked up once, however many tools it has.
        of_server: defaultdict[tuple[str | None, str | None], list[Entry[ToolRegistration]]]
        of_server = defaultdict(list)
        for entry in self._registered.entries():
            of_server[entry.value.definition.server, entry.value.tenant].append(entry)
        for (server, tenant), entries in of_server.items():
            if server is not None and self._placements.instances(server, tenant):
                continue
            for entry in entries:
                if self._abandoned(entry) and self._away(entry):
                    await self._remove(entry)

    async def _remove(self, entry: Entry[ToolRegistration]) -> None:
        try:
            # Only this revision: the server may have registered the tool again in the meantime.
            if await self._bucket.delete(entry.key, revision=entry.revision):
                logger.info("tool withdrawn: its server has no live process", extra={"tool": entry.key})
        except BanksmanError as error:
            logger.warning("tool %s could not be withdrawn and is retried: %s", entry.key, error)

    def _abandoned(self, entry: Entry[ToolRegistration]) -> bool:
        one = entry.value
        if one.definition.server is None:
            return False
        if self._clock.now() - one.registered_at < timedelta(seconds=GRACE_S):
            return False
        return not self._placements.instances(one.definition.server, one.tenant)

    def _away(self, entry: Entry[ToolRegistration]) -> bool:
        one = entry.value
        server = one.definition.server
        return server is None or self._placements.absent_s(server, one.tenant) >= self._away_s

    def _check(self, tenant: str | None, definition: ToolDefinition) -> None:
        others = [entry for entry in self._registered.entries() if entry.key != _key(tenant, definition.name)]
        if sum(entry.value.tenant == tenant for entry in others) >= MAX_TOOLS:
            raise Overloaded(f"{MAX_TOOLS} tools are registered; withdraw one first", retry_after_s=60.0)
        if tenant is None:
            return
        for entry in others:
            one = entry.value
            if one.tenant is not None or self._abandoned(entry):
                continue
            if one.definition.name == definition.name:
                raise _taken(one)
            if one.definition.server == definition.server:
                # Calls name only the server, so ids of the platform's servers are reserved.
                raise Conflict(f"server id {definition.server!r} belongs to a server of the platform")

    async def _take_room(self, tenant: str, size: int) -> None:
        below = f"{self._bucket.subject(tenant)}.{ANY}"
        await self._room.take_lent(self._bucket.stream, below, size, "tools")

    def _listed(self, one: ToolRegistration) -> ListedTool:
        server = one.definition.server
        instances = self._placements.instances(server, one.tenant) if server is not None else ()
        return ListedTool(tenant=one.tenant, definition=one.definition, instances=len(instances))


def _is_of(mcp_server: str, definition: ToolDefinition) -> bool:
    return definition.server is None and mcp_server_of(definition.name) == mcp_server


def _check_definition(definition: ToolDefinition) -> None:
    if definition.server is None:
        raise BadInput("definition.server", None, "the id of the tool server that executes the calls")
    if definition.name in WORKSPACE_NAMES:
        raise Conflict(f"tool {definition.name!r} is already registered: it is a tool of workspaces")
    if not definition.description.strip():
        raise BadInput(
            "definition.description", definition.description, "a text that describes the tool to models"
        )


def _taken(first: ToolRegistration) -> Conflict:
    definition = first.definition
    server = definition.server or mcp_server_of(definition.name)
    return Conflict(f"tool {definition.name!r} is already registered by server {server!r}")


def _key(tenant: str | None, name: str) -> str:
    return name if tenant is None else f"{tenant}.{name}"

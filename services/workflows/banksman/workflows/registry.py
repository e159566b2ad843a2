"""The registry of workflows, and the registered tools that workflows may call."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.names import TOOLS, WORKFLOW_DEFINITIONS
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts import registry
from banksman.contracts.errors import BadInput, Conflict, NotFound, Overloaded
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WEB_SEARCH, WORKSPACE_TOOLS
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.workflows.forms import check_form, naming_form

MAX_TIMEOUT_S = 86_400.0
MAX_WORKFLOWS = 200
"""Maximum number of workflows of one tenant."""


class WorkflowRegistry:
    """Workflow definitions in KV `workflows`, under `{name}` or `{tenant}.{name}`.

    Every write is a compare-and-set, so any number of processes may serve it.
    """

    def __init__(self, bus: Bus, schemas: SchemaChecker) -> None:
        self._bucket = Bucket(bus, WORKFLOW_DEFINITIONS, registry.WorkflowDefinition)
        self._schemas = schemas

    async def register(
        self, definition: registry.WorkflowDefinition, tenant: str | None = None
    ) -> registry.WorkflowRegistration:
        """Register a workflow for a tenant, or for all tenants (None). Its own server may replace it.

        Raises:
            BadInput: The form is not a JSON Schema of an object, or the time limit is too long.
            Conflict: Another server has registered a workflow of that name. Its registration is unchanged.
            Overloaded: The tenant has too many workflows.
        """
        if definition.server == registry.STORED_SERVER or definition.built is not None:
            raise BadInput("definition.server", definition.server, "the id of your workflow server")
        if tenant is None:
            _check_time_limit(definition)
            check_form(definition.parameters_schema)
        else:
            await self._check_of_tenant(tenant, definition)
        key = _key(definition.name, tenant)
        while await self._bucket.create(key, definition) is None:
            entry = await self._bucket.get(key)
            if entry is None:
                continue  # Another process removed the entry between the two requests.
            if entry.value.server != definition.server:
                raise _taken(entry.value)
            if entry.value == definition:
                break
            if await self._bucket.update(key, definition, entry.revision) is not None:
                break
        return registry.WorkflowRegistration(tenant=tenant, definition=definition)

    async def withdraw(self, tenant: str | None, name: str, server: str) -> registry.WorkflowRegistration:
        """Remove a workflow. Its open runs end as failed at their next turn."""
        while True:
            entry = await self._bucket.get(_key(name, tenant))
            if entry is None or entry.value.server != server:
                raise NotFound("workflow", name)
            if await self._bucket.delete(entry.key, revision=entry.revision):
                return registry.WorkflowRegistration(tenant=tenant, definition=entry.value)

    async def store(self, request: registry.StoreWorkflow) -> registry.WorkflowDefinition:
        """Create or replace a workflow without code; a repeated request returns the stored definition.

        Raises:
            BadInput: The form is not a JSON Schema of an object, or the time limit is too long.
            NotFound: No workflow without code has this name.
            Conflict: The name is taken, or the stored one has another revision.
            Overloaded: The tenant has too many workflows.
        """
        tenant, definition = request.tenant, request.definition
        await self._check_of_tenant(tenant, definition)
        key = _key(definition.name, tenant)
        if request.create and (created := await self._bucket.create(key, definition)) is not None:
            return definition.model_copy(update={"revision": created})
        while True:
            entry = await self._bucket.get(key)
            if entry is None or (entry.value.server != registry.STORED_SERVER and not request.create):
                raise NotFound("workflow", definition.name)
            if entry.value == definition:
                return _with_revision(entry)
            if request.create:
                raise _taken(entry.value)
            if request.revision not in (None, entry.revision):
                stored = f"workflow {definition.name!r} is at revision {entry.revision}"
                raise Conflict(f"{stored}, not {request.revision}: read it again")
            if (revision := await self._bucket.update(key, definition, entry.revision)) is not None:
                return definition.model_copy(update={"revision": revision})

    async def get(self, name: str, tenant: str | None = None) -> registry.WorkflowDefinition:
        """Return a workflow that a tenant's users may start; raise `NotFound` if none has this name."""
        entry = await self._bucket.get(_key(name))
        if entry is None and tenant is not None:
            entry = await self._bucket.get(_key(name, tenant))
        if entry is None:
            raise NotFound("workflow", name)
        return _with_revision(entry)

    async def all(self, tenant: str | None = None) -> tuple[registry.WorkflowDefinition, ...]:
        """Return the workflows that a tenant's users may start; for None, those of the platform.

        A workflow of the platform takes precedence over a tenant's workflow of the same name.
        """
        found: dict[str, registry.WorkflowDefinition] = {}
        async for entry in self._bucket.entries():
            owner, dot, name = entry.key.rpartition(".")
            if not dot or (owner == tenant and name not in found):
                found[name] = entry.value.model_copy(update={"built": None})
        return tuple(found[name] for name in sorted(found))

    async def _check_of_tenant(self, tenant: str, definition: registry.WorkflowDefinition) -> None:
        _check_time_limit(definition)
        if definition.server == registry.BUILTIN_SERVER:
            raise BadInput("definition.server", definition.server, "the id of your workflow server")
        with naming_form():
            # Checked in a process with limits, because a tenant wrote the schema.
            await self._schemas.check_schema(tenant, definition.parameters_schema)
        first = await self._bucket.get(_key(definition.name))
        if first is not None:
            raise _taken(first.value)
        known = await self._bucket.keys(tenant)
        if _key(definition.name, tenant) not in known and len(known) >= MAX_WORKFLOWS:
            text = f"{MAX_WORKFLOWS} workflows are registered; withdraw one first"
            raise Overloaded(text, retry_after_s=60.0)


def _check_time_limit(definition: registry.WorkflowDefinition) -> None:
    if definition.timeout_s > MAX_TIMEOUT_S:
        raise BadInput("timeout_s", definition.timeout_s, f"at most {MAX_TIMEOUT_S:g} seconds")


def _with_revision(entry: Entry[registry.WorkflowDefinition]) -> registry.WorkflowDefinition:
    if entry.value.built is None:
        return entry.value
    return entry.value.model_copy(update={"revision": entry.revision})


def _taken(first: registry.WorkflowDefinition) -> Conflict:
    return Conflict(f"workflow {first.name!r} is already registered by {first.server!r}")


def _key(name: str, tenant: str | None = None) -> str:
    return name if tenant is None else f"{tenant}.{name}"


class CallableTools(BucketView[registry.ToolRegistration]):
    """The registered tools, and those of workspaces; a search without a provider ends as `unavailable`."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(Bucket(bus, TOOLS, registry.ToolRegistration))

    def find(self, tenant: str, name: str) -> ToolDefinition | None:
        registered = (entry.value for entry in self.entries())
        others = (one.definition for one in registry.visible_to(tenant, registered))
        return next((tool for tool in (*WORKSPACE_TOOLS, WEB_SEARCH, *others) if tool.name == name), None)

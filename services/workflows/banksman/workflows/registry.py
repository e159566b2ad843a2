"""The registry of workflows, and their groups for a selector."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import WORKFLOW_DEFINITIONS
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.registry import WorkflowCategory, WorkflowDefinition
from banksman.workflows.forms import check_form

MAX_TIMEOUT_S = 86_400.0
"""The longest time limit of a run, in seconds."""


class Registry:
    """Workflow definitions in KV `workflows`, by name."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, WORKFLOW_DEFINITIONS, WorkflowDefinition)

    async def register(self, definition: WorkflowDefinition) -> None:
        """Register a workflow. The same server may register it again, also with changes.

        Raises:
            BadInput: Its form is not a JSON Schema of an object, or its time limit is too long.
            Conflict: Another server has registered a workflow of that name. Its registration is unchanged.
        """
        check_form(definition.parameters_schema)
        if definition.timeout_s > MAX_TIMEOUT_S:
            raise BadInput("timeout_s", definition.timeout_s, f"at most {MAX_TIMEOUT_S:g} seconds")
        while await self._bucket.create(definition.name, definition) is None:
            entry = await self._bucket.get(definition.name)
            if entry is None:
                continue  # Removed between the two requests.
            first = entry.value
            if first.server != definition.server:
                raise Conflict(f"workflow {first.name!r} is already registered by {first.server!r}")
            if first == definition:
                return
            if await self._bucket.update(definition.name, definition, entry.revision) is not None:
                return

    async def get(self, name: str) -> WorkflowDefinition:
        """Return the definition of a workflow.

        Raises:
            NotFound: No workflow has this name.
        """
        entry = await self._bucket.get(name)
        if entry is None:
            raise NotFound("workflow", name)
        return entry.value

    async def all(self) -> tuple[WorkflowDefinition, ...]:
        """Return all definitions, sorted by name."""
        found = [entry.value async for entry in self._bucket.entries()]
        return tuple(sorted(found, key=lambda definition: definition.name))


def by_category(definitions: Iterable[WorkflowDefinition]) -> tuple[WorkflowCategory, ...]:
    """Return the workflows by category, both sorted by name (R27)."""
    ordered = sorted(definitions, key=lambda definition: (definition.category, definition.name))
    return tuple(
        WorkflowCategory(name=name, title=_title(name), workflows=tuple(group))
        for name, group in groupby(ordered, key=lambda definition: definition.category)
    )


def _title(category: str) -> str:
    return category.replace("_", " ").replace("-", " ").capitalize()

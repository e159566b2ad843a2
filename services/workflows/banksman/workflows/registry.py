"""The registry: which workflows there are, who serves them, and how a selector groups them."""

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
"""Seconds of work that a run may take at most, whatever its kind."""


class Registry:
    """KV `workflows`: a definition under each name."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, WORKFLOW_DEFINITIONS, WorkflowDefinition)

    async def register(self, definition: WorkflowDefinition) -> None:
        """Offer a workflow. Its own server may repeat it and renew it.

        Raises:
            BadInput: its form is no JSON Schema of an object, or its time-out is too long.
            Conflict: another server offers a workflow of that name; that one stays as it is.
        """
        check_form(definition.parameters_schema)
        if definition.timeout_s > MAX_TIMEOUT_S:
            raise BadInput("timeout_s", definition.timeout_s, f"at most {MAX_TIMEOUT_S:g} seconds")
        while await self._bucket.create(definition.name, definition) is None:
            entry = await self._bucket.get(definition.name)
            if entry is None:
                continue
            first = entry.value
            if first.server != definition.server:
                raise Conflict(f"workflow {first.name!r} is already registered by {first.server!r}")
            if first == definition:
                return
            if await self._bucket.update(definition.name, definition, entry.revision) is not None:
                return

    async def get(self, name: str) -> WorkflowDefinition:
        """The definition of that name.

        Raises:
            NotFound: there is none.
        """
        entry = await self._bucket.get(name)
        if entry is None:
            raise NotFound("workflow", name)
        return entry.value

    async def all(self) -> tuple[WorkflowDefinition, ...]:
        """Every definition, sorted by name."""
        found = [entry.value async for entry in self._bucket.entries()]
        return tuple(sorted(found, key=lambda definition: definition.name))


def by_category(definitions: Iterable[WorkflowDefinition]) -> tuple[WorkflowCategory, ...]:
    """Workflows in the groups of a selector, both sorted by name (R27)."""
    ordered = sorted(definitions, key=lambda definition: (definition.category, definition.name))
    return tuple(
        WorkflowCategory(name=name, title=_title(name), workflows=tuple(group))
        for name, group in groupby(ordered, key=lambda definition: definition.category)
    )


def _title(category: str) -> str:
    return category.replace("_", " ").replace("-", " ").capitalize()

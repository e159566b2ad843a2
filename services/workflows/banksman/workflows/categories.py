"""The workflows of each category."""

from __future__ import annotations

from collections.abc import Iterable

from banksman.contracts.registry import WorkflowCategory, WorkflowDefinition
from banksman.contracts.tool_views import categories_of


def by_category(definitions: Iterable[WorkflowDefinition]) -> tuple[WorkflowCategory, ...]:
    """Return the categories that have workflows, in their order, with the workflows sorted by name (R27)."""
    groups: dict[str, list[WorkflowDefinition]] = {}
    for definition in sorted(definitions, key=lambda definition: definition.name):
        groups.setdefault(definition.category, []).append(definition)
    return tuple(
        WorkflowCategory(**dict(category), workflows=tuple(groups[category.name]))
        for category in categories_of(groups)
    )

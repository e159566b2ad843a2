"""Categories of workflows and tools: objects that a selector shows in their order."""

from __future__ import annotations

from collections.abc import Iterable

from banksman.contracts.registry import WorkflowCategory, WorkflowDefinition

OTHER_ORDER = 100
"""The order of a category that is not of the platform."""

_KNOWN = (
    ("project", "Project", "Create projects and their first files.", "folder-plus"),
    ("code", "Code", "Search, change and test code.", "code"),
    ("research", "Research", "Read pages and write reports.", "book"),
    ("conversation", "Conversation", "Work with what was said.", "message"),
    ("workspace", "Workspace", "Read and write files, and run commands.", "terminal"),
    ("web", "Web", "Fetch pages.", "globe"),
)
CATEGORIES = tuple(
    WorkflowCategory(name=name, title=title, description=description, icon=icon, order=order)
    for order, (name, title, description, icon) in enumerate(_KNOWN, start=1)
)
"""The categories of the platform."""


def category_of(name: str) -> WorkflowCategory:
    """Return a category by name; the title of one that is not of the platform is derived from its name."""
    known = (category for category in CATEGORIES if category.name == name)
    title = name.replace("_", " ").replace("-", " ").capitalize()
    return next(known, WorkflowCategory(name=name, title=title, order=OTHER_ORDER))


def by_category(definitions: Iterable[WorkflowDefinition]) -> tuple[WorkflowCategory, ...]:
    """Return the categories that have workflows, in their order, with the workflows sorted by name (R27)."""
    groups: dict[str, list[WorkflowDefinition]] = {}
    for definition in sorted(definitions, key=lambda definition: definition.name):
        groups.setdefault(definition.category, []).append(definition)
    found = (
        category_of(name).model_copy(update={"workflows": tuple(group)}) for name, group in groups.items()
    )
    return tuple(sorted(found, key=lambda category: (category.order, category.title)))

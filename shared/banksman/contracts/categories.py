"""Categories by which clients group workflows and tools."""

from __future__ import annotations

from collections.abc import Iterable

from banksman.contracts.wire import Stored, Token

OTHER_ORDER = 100
"""The order of a category that the platform does not define."""


class Category(Stored):
    """A category of workflows and tools."""

    name: Token
    title: str
    description: str = ""
    order: int = 0
    """Position in lists; categories with the same order are sorted by title."""
    icon: str = ""
    """Name of an icon."""


_KNOWN = (
    ("project", "Project", "Create projects and their first files.", "folder-plus"),
    ("code", "Code", "Search, change and test code.", "code"),
    ("research", "Research", "Read pages and write reports.", "book"),
    ("conversation", "Conversation", "Work with what was said.", "message"),
    ("workspace", "Workspace", "Read and write files, and run commands.", "terminal"),
    ("web", "Web", "Fetch pages.", "globe"),
)


def category_of(name: str) -> Category:
    """Return a category by name. An unknown category gets a title derived from its name."""
    for order, (known, title, description, icon) in enumerate(_KNOWN, start=1):
        if known == name:
            return Category(name=name, title=title, description=description, icon=icon, order=order)
    title = name.replace("_", " ").replace("-", " ").capitalize()
    return Category(name=name, title=title, order=OTHER_ORDER)


def categories_of(names: Iterable[str]) -> tuple[Category, ...]:
    """Return the categories with these names, each once, in their order."""
    found = (category_of(name) for name in set(names))
    return tuple(sorted(found, key=lambda category: (category.order, category.title)))

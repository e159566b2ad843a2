"""What clients read about tools: those that models may call, their categories, and the calls of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from banksman.contracts.events import TrackedCall
from banksman.contracts.mcp import mcp_server_of
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, Stored, Token

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


BUILTIN_OWNER = "builtin"
"""The owner of the tools that every runner serves."""


class ToolView(Stored):
    """`api.{t}.tool.read.{name}` and one tool of a list: a tool that the tenant's models may call."""

    name: str
    description: str
    input_schema: JsonObject
    """JSON Schema of the arguments object."""
    category: str
    owner: str
    """The id of the tool server that registered it, or of its MCP server; `builtin` for a workspace tool."""
    tenant: Token | None
    """The tenant that owns it; null for a tool of all tenants."""
    requires_approval: bool
    """Whether a call needs approval, unless an assistant's policy decides."""
    idempotent: bool
    terminate: bool
    """Whether every call ends the run."""
    timeout_s: float
    available: bool
    """Whether a process serves it now. Models are not offered a tool that is not available."""


class ToolViews(Stored):
    """`api.{t}.tool.list`: the tools that the tenant's models may call, the built-in ones first."""

    items: tuple[ToolView, ...]
    next: None = None
    categories: tuple[Category, ...] = ()
    """The categories of these tools, in their order; workflows share them."""

    @classmethod
    def of(cls, items: tuple[ToolView, ...]) -> Self:
        """Return a list with its categories."""
        return cls(items=items, categories=categories_of(tool.category for tool in items))


def tool_view(definition: ToolDefinition, tenant: str | None, *, available: bool) -> ToolView:
    """Return the view of a tool for clients."""
    names = ToolView.model_fields.keys() - {"owner", "tenant", "available"}
    return ToolView(
        **{name: getattr(definition, name) for name in names},
        owner=definition.server or mcp_server_of(definition.name) or BUILTIN_OWNER,
        tenant=tenant,
        available=available,
    )


class ListedCall(TrackedCall):
    """A call of a run. Its complete output is at `…/tool-calls/{tool_call_id}/output`."""

    tool_call_id: Token


class CallPage(Stored):
    """A page of the calls of a run that have a result, in the order of their results."""

    items: tuple[ListedCall, ...]
    next: int | None
    """`after` of the next page; null at the end."""
    total: int
    """Number of calls with a result."""

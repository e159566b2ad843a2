"""Views of the tools that a tenant's models may call, for clients."""

from __future__ import annotations

from typing import Self

from banksman.contracts.categories import Category, categories_of
from banksman.contracts.mcp import mcp_server_of
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, Stored, Token

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

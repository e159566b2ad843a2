"""Registration over NATS: tools and workflows are offered by the processes that serve them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token


class RegisterTool(Stored):
    """`tool.register`: offer a tool, or renew the offer; the answer is a `ToolRegistration` or an error."""

    definition: ToolDefinition
    """With `server`: the tool server that answers its calls, one id for all of its processes."""


class WithdrawTool(Stored):
    """`tool.withdraw`: take back one's own offer; the answer is what was registered, or an error."""

    name: Token
    server: Token


class ToolRegistration(Stored):
    """KV `tools`: one tool, and for whom."""

    tenant: Token | None = None
    """Whose models may call it; None for everybody's."""
    definition: ToolDefinition
    registered_at: Timestamp


class ListedTool(Stored):
    """One tool in the answer to `tool.list`."""

    tenant: Token | None
    definition: ToolDefinition
    instances: int
    """Live processes of its server; without one it is not offered."""


class ToolList(Stored):
    """The answer to `tool.list`: the tools that the asker's models may call, sorted by name."""

    tools: tuple[ListedTool, ...]


def visible_to(tenant: str, registered: Iterable[ToolRegistration]) -> tuple[ToolRegistration, ...]:
    """What a tenant's models may call, sorted by name; of two that share a name, the tenant's own."""
    found: dict[str, ToolRegistration] = {}
    for one in registered:
        name = one.definition.name
        if one.tenant == tenant or (one.tenant is None and name not in found):
            found[name] = one
    return tuple(found[name] for name in sorted(found))


class WorkflowDefinition(Stored):
    """KV `workflows`: a named action that users start themselves."""

    name: Token
    title: str = Field(default="", max_length=200)
    description: str = Field(default="", max_length=4000)
    category: Token = "general"
    parameters_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of its form."""
    timeout_s: float = Field(default=3600.0, gt=0, le=7 * 86_400)
    server: Token = "builtin"


class WorkflowCategory(Stored):
    """A group of workflows in the selector."""

    name: Token
    title: str
    workflows: tuple[WorkflowDefinition, ...]


class WorkflowName(Stored):
    """`workflows.get`: asks for one definition; the answer is a `WorkflowDefinition` or an error."""

    name: Token


class WorkflowList(Stored):
    """The answer to `workflows.list`, sorted by name."""

    workflows: tuple[WorkflowDefinition, ...]


class WorkflowCategories(Stored):
    """The answer to `workflows.categories`, sorted by title."""

    categories: tuple[WorkflowCategory, ...]


class CheckWorkflow(Stored):
    """`workflows.start`: may this be started? Asked before a `StartWorkflow` is stored; starts nothing."""

    workflow: Token
    parameters: JsonObject = Field(default_factory=dict)


class WorkflowChecked(Stored):
    """The answer to `workflows.start` when the parameters fit; else it is an error that names the first."""

    workflow: WorkflowDefinition
    parameters: JsonObject
    """With the form's defaults filled in: what to put into the `StartWorkflow`."""


class StartWorkflow(Stored):
    """`workflow.run.{name}.{t}.{c}`: run a workflow. Message id `workflow:{run}`."""

    v: Literal[1] = 1
    type: Literal["workflow"] = "workflow"
    tenant: Token
    workflow: Token
    conversation_id: Token
    """The log of this workflow run; its own."""
    run_id: Token
    message_id: Token
    parameters: JsonObject
    user: str = Field(max_length=200)
    in_conversation: Token | None = None
    """Where it was started: a link event goes there and its workspace is used. None for one of its own."""


class SystemPrompt(Stored):
    """A stored system prompt (KV `prompts`)."""

    id: Token
    name: str = Field(default="", max_length=200)
    content: str = Field(max_length=256 * 1024)
    revision: int = 0

"""Registration over NATS: tools and workflows are offered by the processes that serve them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, Stored, Token, Wire


class ToolRegistration(Stored):
    """KV `tools`: one tool and who serves it."""

    tenant: Token | None = None
    """Whose models may call it; None for everybody's."""
    definition: ToolDefinition
    server: Token | None = None
    """The tool server; None for the runners."""
    instance_ttl_s: float | None = None


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


class WorkflowName(Wire):
    """`workflows.get`: asks for one definition; the answer is a `WorkflowDefinition` or an error."""

    name: Token


class WorkflowList(Stored):
    """The answer to `workflows.list`, sorted by name."""

    workflows: tuple[WorkflowDefinition, ...]


class WorkflowCategories(Stored):
    """The answer to `workflows.categories`, sorted by title."""

    categories: tuple[WorkflowCategory, ...]


class CheckWorkflow(Wire):
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

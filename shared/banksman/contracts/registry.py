"""Registration over NATS: a process registers the tools and workflows that it serves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from banksman.contracts.assistants import ONE_APPROVER, ApprovalRule, ApprovalTerms, OnReject, RunSettings
from banksman.contracts.tool_views import Category
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Timestamp, Token
from banksman.contracts.workflows import Built


class RegisterTool(Stored):
    """`tool.register`: register a tool or renew its registration; the reply is a `ToolRegistration`."""

    definition: ToolDefinition
    """`server` must be the id of the tool server, the same in all of its processes."""


class WithdrawTool(Stored):
    """`tool.withdraw`: remove a registration of the sender; the reply is the removed `ToolRegistration`."""

    name: Token
    server: Token


class ToolRegistration(Stored):
    """KV `tools`: one registered tool and the tenant it serves."""

    tenant: Token | None = None
    """The tenant whose models may call it; None for all tenants."""
    definition: ToolDefinition
    registered_at: Timestamp


class ListedTool(Stored):
    """One tool in the reply to `tool.list`."""

    tenant: Token | None
    definition: ToolDefinition
    instances: int
    """Number of live processes of its server. Models are not offered a tool with 0."""


class ToolList(Stored):
    """The reply to `tool.list`: the tools that the requesting tenant's models may call.

    The built-in ones come first, the others follow sorted by name.
    """

    tools: tuple[ListedTool, ...]


def visible_to(tenant: str, registered: Iterable[ToolRegistration]) -> tuple[ToolRegistration, ...]:
    """Return the tools that a tenant's models may call, sorted by name; its own tools take precedence."""
    found: dict[str, ToolRegistration] = {}
    for one in registered:
        name = one.definition.name
        if one.tenant == tenant or (one.tenant is None and name not in found):
            found[name] = one
    return tuple(found[name] for name in sorted(found))


BUILTIN_SERVER = "builtin"
"""The server of the workflows that the platform provides."""
STORED_SERVER = "stored"
"""The server of the workflows without code, which users create."""


class WorkflowDefinition(Stored):
    """KV `workflows`: a named action that a user starts."""

    name: Token
    title: str = Field(default="", max_length=200)
    description: str = Field(default="", max_length=4000)
    category: Token = "general"
    parameters_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of its parameter form."""
    timeout_s: float = Field(default=3600.0, gt=0, le=7 * 86_400)
    """Seconds of work; time spent waiting for a user does not count."""
    server: Token = BUILTIN_SERVER
    """The id of the server whose processes run its function; `stored` for a workflow without code."""
    built: Built | None = Field(default=None, exclude_if=lambda built: built is None)
    """The definition of a workflow without code; lists omit it."""
    revision: int | None = Field(default=None, exclude_if=lambda revision: revision is None)
    """The revision of a workflow without code; lists omit it."""


class StoreWorkflow(Stored):
    """`workflows.store`: create or replace a workflow without code; the reply is its definition."""

    tenant: Token
    definition: WorkflowDefinition
    create: bool = False
    """True creates it, and refuses a name that is taken; False replaces the stored one."""
    revision: int | None = None
    """The revision to replace; None replaces any."""


class DeleteWorkflow(Stored):
    """`workflows.delete`: delete a workflow without code; the reply is its definition."""

    tenant: Token
    name: Token


class RegisterWorkflow(Stored):
    """`workflow.register`: register or change a workflow; the reply is its registration or an error."""

    definition: WorkflowDefinition
    """`server` must be the id of the workflow server, the same in all of its processes."""


class WithdrawWorkflow(Stored):
    """`workflow.withdraw`: remove a registration of the sender; the reply is the removed registration."""

    name: Token
    server: Token


class WorkflowRegistration(Stored):
    """A registered workflow, and the tenant whose users may start it."""

    tenant: Token | None = None
    """The tenant; None for all tenants."""
    definition: WorkflowDefinition


class WorkflowCategory(Category):
    """A category of workflows in the selector; tools share the categories."""

    workflows: tuple[WorkflowDefinition, ...] = ()


class WorkflowName(Stored):
    """`workflows.get`: request one definition; the reply is a `WorkflowDefinition` or an error."""

    name: Token
    tenant: Token | None = None
    """The tenant whose own workflows are searched too."""


class ListWorkflows(Stored):
    """`workflows.list` and `workflows.categories`: request the workflows that a tenant's users may start."""

    tenant: Token | None = None
    """The tenant; None lists only the workflows of all tenants."""


class WorkflowList(Stored):
    """The reply to `workflows.list`, sorted by name."""

    workflows: tuple[WorkflowDefinition, ...]


class WorkflowCategories(Stored):
    """The reply to `workflows.categories`, sorted by order and title."""

    categories: tuple[WorkflowCategory, ...]


class CheckWorkflow(Stored):
    """`workflows.start`: check a start before a `StartWorkflow` is stored. It starts nothing."""

    workflow: Token
    parameters: JsonObject = Field(default_factory=dict)
    tenant: Token | None = None


class WorkflowChecked(Stored):
    """The reply to `workflows.start` if the parameters are valid; otherwise it is an error."""

    workflow: WorkflowDefinition
    parameters: JsonObject
    """The parameters for `StartWorkflow`, completed with the form's defaults."""


class ParseWorkflow(Stored):
    """`workflows.parse`: parse a command, or check parameters that a model extracted from plain language."""

    tenant: Token | None = None
    text: str = Field(default="", max_length=20_000)
    """A command: `/name value parameter=value "quoted value"`."""
    workflow: Token | None = None
    """The workflow whose `parameters` are to be checked, instead of a command."""
    parameters: JsonObject = Field(default_factory=dict)


class ParameterProblem(Stored):
    """A missing or invalid parameter."""

    parameter: str
    value: JsonValue = None
    expected: str


class ParsedWorkflow(Stored):
    """The reply to `workflows.parse`: a filled form, for confirmation; it starts nothing."""

    workflow: WorkflowDefinition
    parameters: JsonObject
    """The values that could be read, completed with the form's defaults."""
    problems: tuple[ParameterProblem, ...] = ()
    """Missing and invalid parameters; if empty, the workflow can be started."""
    source: Literal["command", "language"] = "command"


class StartWorkflow(Stored):
    """`workflow.run.{name}.{t}.{c}`: start a workflow. Message id `workflow:{run}`."""

    v: Literal[1] = 1
    type: Literal["workflow"] = "workflow"
    tenant: Token
    workflow: Token
    conversation_id: Token
    """The conversation whose log belongs to this workflow run alone."""
    run_id: Token
    message_id: Token
    parameters: JsonObject
    user: str = Field(max_length=200)
    in_conversation: Token | None = None
    """The conversation in which it was started: its log gets a link event, and its workspace is used.
    None if it was started without a conversation."""
    tools: ToolPolicy
    agent: RunSettings | None = Field(default=None, exclude_if=lambda agent: agent is None)
    """Settings of the agent runs that it starts; None where no model is configured."""
    traceparent: str | None = Field(default=None, exclude_if=lambda trace: trace is None)
    """The W3C trace context of the request that started it; None without one."""


class ToolPolicy(Stored):
    """The approval policy of the assistant in whose name a workflow runs."""

    rules: tuple[ApprovalRule, ...] = ()
    on_reject: OnReject = "abort"
    approvals: ApprovalTerms = Field(default=ONE_APPROVER, exclude_if=lambda terms: terms == ONE_APPROVER)


StartWorkflow.model_rebuild()


class SystemPrompt(Stored):
    """A stored system prompt (KV `prompts`)."""

    id: Token
    name: str = Field(default="", max_length=200)
    content: str = Field(max_length=256 * 1024)
    revision: int = 0

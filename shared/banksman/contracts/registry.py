"""Registration over NATS of the tools and workflows that a process serves, and what clients read of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import Field

from banksman.contracts import assistants
from banksman.contracts.events import TrackedCall
from banksman.contracts.mcp import MAX_TOOLS, McpServerId, RefusedTool, mcp_server_of
from banksman.contracts.messages import UNKNOWN, Provenance
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Timestamp, Token
from banksman.contracts.workflows import Built

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


class RegisterTool(Stored):
    """`tool.register`: register a tool or renew its registration; the reply is a `ToolRegistration`."""

    definition: ToolDefinition
    """`server` must be the id of the tool server, the same in all of its processes."""


class WithdrawTool(Stored):
    """`tool.withdraw`: remove a registration of the sender; the reply is the removed `ToolRegistration`."""

    name: Token
    server: Token


class OfferTools(Stored):
    """`tool.offer.{t}`: offer exactly these tools of an MCP server to a tenant."""

    server: McpServerId
    definitions: tuple[ToolDefinition, ...] = Field(max_length=MAX_TOOLS)


class OfferedTools(Stored):
    """The reply to `OfferTools`."""

    refused: tuple[RefusedTool, ...] = ()


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
    agent: assistants.RunSettings | None = Field(default=None, exclude_if=lambda agent: agent is None)
    """Settings of the agent runs that it starts; None where no model is configured."""
    traceparent: str | None = Field(default=None, exclude_if=lambda trace: trace is None)
    """The W3C trace context of the request that started it; None without one."""
    provenance: Provenance = Field(default=UNKNOWN, exclude_if=lambda one: one == UNKNOWN)
    """Who wrote its parameters."""


class ToolPolicy(Stored):
    """The approval policy of the assistant in whose name a workflow runs, and its tools."""

    rules: tuple[assistants.ApprovalRule, ...] = ()
    on_reject: assistants.OnReject = "abort"
    approvals: assistants.ApprovalTerms = Field(
        default=assistants.ONE_APPROVER, exclude_if=lambda terms: terms == assistants.ONE_APPROVER
    )
    tools: assistants.ToolSettings | None = Field(default=None, exclude_if=lambda tools: tools is None)
    """The tools of the assistant; None in starts of older gateways, whose calls may use every tool."""


StartWorkflow.model_rebuild()


class SystemPrompt(Stored):
    """A stored system prompt (KV `prompts`)."""

    id: Token
    name: str = Field(default="", max_length=200)
    content: str = Field(max_length=256 * 1024)
    revision: int = 0

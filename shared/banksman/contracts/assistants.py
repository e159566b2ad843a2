"""Assistants: the stored configuration of runs, the settings that a run resolves from it, and requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from banksman.contracts.mcp import McpServerId, mcp_server_of
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import NetworkPolicy, Registry, SearchChoice, ToolDefinition
from banksman.contracts.wire import JsonObject, Stored, Text, Token, Wire
from banksman.contracts.workflows import Built
from banksman.contracts.workspaces import AssistantFiles, RepositorySource, SubmittedFiles

Decision = Literal["auto", "ask", "deny"]
"""
auto  the call runs at once
ask   a user decides
deny  the call gets a result `denied` without an approval request
"""

Label = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40, pattern=r"^[^,]+$")
]
Labels = Annotated[tuple[Label, ...], Field(max_length=10)]

OnReject = Literal["abort", "feedback"]
"""
abort     one rejected call ends the run
feedback  the rejection is returned to the model as the result of that call
"""


class ApprovalRule(Stored):
    """One rule of an approval policy. The first rule that matches a call decides."""

    tool: str = Field(default="*", max_length=128)
    """Glob pattern of tool names."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Glob patterns by argument name, matched against the argument's text. All must match.

    For the `command` of `bash`, `auto` matches word by word, and only simple commands: no operator,
    redirection, assignment, variable, substitution or pattern of file names. A last `*` stands for words that
    are not options, a last `-*` for words of any kind; other wildcards match an option only if they begin
    with `-`. A rule does not see what a program does with its words: a subcommand, an option, an alias of its
    settings or a script can run other programs. `deny` matches the text and the words; a user decides a
    command that it cannot read.
    """
    action: Decision


class Escalation(Stored):
    """When an approval request is escalated, and to which users. All approvers can still decide it."""

    after_s: float | None = Field(default=None, gt=0, le=30 * 86_400)
    """Seconds after the request; None disables escalation by time."""
    when_set_aside: bool = False
    """Whether it is escalated as soon as one user sets it aside."""
    users: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = Field(
        default=(), max_length=50
    )
    """The users that the request is escalated to; if empty, all approvers."""


class ApprovalTerms(Stored):
    """How approval requests are decided."""

    approvers: Literal[1, 2] = 1
    """Users who must approve the same calls with the same arguments. One rejection always decides."""
    escalation: Escalation | None = None
    """None disables escalation."""


PROVIDERS = ("anthropic", "openai", "backboard", "demo")
"""The providers of models without a setting: the first part of `provider:model`."""
ONE_APPROVER = ApprovalTerms()
Registries = Annotated[tuple[Registry, ...], Field(max_length=20)]
MAX_RULES = 100
"""Maximum number of rules in a tenant's policy."""


class ApprovalPolicy(Stored):
    """The approval policy of a tenant for the calls of all its assistants (KV `policies`)."""

    id: Token = "policy"
    revision: int = 0
    """The KV revision at which it was read."""
    rules: tuple[ApprovalRule, ...] = Field(default=(), max_length=MAX_RULES)
    """Rules that are evaluated before those of an assistant."""
    approvals: ApprovalTerms = ONE_APPROVER
    """The minimum terms of every approval request."""
    registries: Registries = Field(default=(), exclude_if=lambda registries: not registries)
    """Registries of packages that commands may install from, if the operator of their runner allows it."""

    search: SearchChoice | None = Field(default=None, exclude_if=lambda search: search is None)
    """The provider of web searches, unless the operator's settings name one."""

    def applied_to(self, assistant: Assistant) -> Assistant:
        """Return the assistant with this policy's rules first, at least its terms, and what calls reach."""
        own = assistant.approvals
        terms = ApprovalTerms(
            approvers=max(self.approvals.approvers, own.approvers),
            escalation=own.escalation or self.approvals.escalation,
        )
        rules = (*self.rules, *assistant.approval_policy)
        update = {"approval_policy": rules, "approvals": terms, "tools": self._with_reach(assistant)}
        return assistant.model_copy(update=update)

    def _with_reach(self, assistant: Assistant) -> ToolSettings:
        granted = tuple(
            one for one in self.registries if one.assistants is None or assistant.id in one.assistants
        )
        tools = assistant.tools.model_copy(update={"search": self.search})
        if not granted and (tools.network is None or not tools.network.registries):
            return tools
        network = (tools.network or NetworkPolicy()).model_copy(update={"registries": granted})
        return tools.model_copy(update={"network": network})


FallbackModels = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...], Field(max_length=5)
]
"""`provider:model` of each model to try, in this order, when the model before it is unavailable.

A model is unavailable if its provider limits the rate, fails or times out after all retries. A refused
request does not go to the next model. A model with successors gets half of the run's remaining time. Each
request of a run begins with the first model.
"""


class ToolSettings(Stored):
    """Whether and how the model may call tools. Tools are off by default."""

    enabled: bool = False
    allowed_tools: tuple[str, ...] | None = None
    """Names of the tools to offer; None offers every registered tool."""
    mcp_servers: Annotated[tuple[McpServerId, ...], Field(max_length=100)] | None = Field(
        default=None, exclude_if=lambda servers: servers is None
    )
    """The MCP servers whose tools are offered; None offers the tools of all servers of the tenant."""
    always_offered: tuple[str, ...] = ()
    """Names of the tools that are dropped last when not all tools fit into a request."""
    max_iterations: int = Field(default=10, ge=1, le=1000)
    """Model requests with calls before the run ends with status `max_iterations`."""
    tool_protocol: Literal["auto", "native", "json_text"] = "auto"
    """`auto` selects `native` if the provider supports it."""
    final_summary: bool = False
    """True requests a final message from the model after a terminating call; False returns its result."""
    on_reject: OnReject = "abort"
    network: NetworkPolicy | None = Field(default=None, exclude_if=lambda policy: policy is None)
    """Hosts that `web_fetch` may reach, and commands if `commands` is True. None allows `web_fetch` all hosts
    that the operator allows, and commands none."""
    toolchain: Token | None = Field(default=None, exclude_if=lambda toolchain: toolchain is None)
    """The programs that `bash` finds besides the usual ones: the name of a toolchain that the operator of the
    runners has defined."""
    search: SearchChoice | None = Field(default=None, exclude_if=lambda search: search is None)
    """The provider of web searches in the tenant's policy. An assistant cannot state any."""

    def allows(self, tool: ToolDefinition) -> bool:
        """Return whether a registered tool is offered."""
        server = mcp_server_of(tool.name) if tool.server is None else None
        if server is not None and self.mcp_servers is not None and server not in self.mcp_servers:
            return False
        return self.allowed_tools is None or tool.name in self.allowed_tools


class Limits(Stored):
    """Limits of one run. A run that reaches one ends with the error code of that limit."""

    run_timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """Maximum seconds of work. Time spent waiting for a user does not count."""
    calls_per_reply: int = Field(default=32, ge=1, le=1000)
    """Maximum number of tool calls in one reply."""
    max_calls_per_run: int | None = Field(default=None, gt=0, exclude_if=lambda most: most is None)
    """Maximum number of tool calls with a result, including refused ones; None means no limit."""
    max_tokens_per_run: int | None = Field(default=None, gt=0)
    """Maximum sum of input and output tokens; None means no limit."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    context_tokens: int | None = Field(default=None, ge=1_000)
    """Size of the model's context window; None applies the deployment's table. Before the history reaches it,
    compaction replaces the older part by a summary."""


class Assistant(Stored):
    """The stored configuration of runs (a "response rule")."""

    id: Token
    revision: int = 0
    """The KV revision at which it was read. A run records it."""
    name: str = Field(default="", max_length=200)
    service: str = Field(default="banksman", max_length=64)
    """Returned as `service` in the outcome of a run."""
    model: str | None = Field(default=None, max_length=200)
    """`provider:model`; None selects the deployment's default model."""
    fallback_models: FallbackModels = ()
    system_prompt_id: Token | None = None
    system_prompt: Text | None = None
    """Applies if `system_prompt_id` is None; if both are None, the built-in prompt applies."""
    options: ModelOptions = ModelOptions()
    tools: ToolSettings = ToolSettings()
    limits: Limits = Limits()
    approval_policy: tuple[ApprovalRule, ...] = ()
    """Rules in the order of evaluation. If none matches, the tool's `requires_approval` decides."""
    approvals: ApprovalTerms = Field(default=ONE_APPROVER, exclude_if=lambda terms: terms == ONE_APPROVER)
    """How the approval requests of its runs are decided."""
    variables: JsonObject = Field(default_factory=dict)
    """Default values of the system prompt's variables."""
    files: AssistantFiles = ()
    """Files that each new workspace of its conversations starts with."""


class Branch(Stored):
    """The earlier message after which a run continues a conversation."""

    after: Token | None
    """The message that the run's message follows, with the results of its calls; None for the beginning.

    A message that a compaction has replaced cannot be followed: the run then continues the newest path."""


class RunSettings(Stored):
    """The settings of one run, resolved from the assistant, the conversation and the request."""

    assistant_id: Token
    assistant_revision: int = 0
    service: str = "banksman"
    model: str
    """`provider:model`."""
    fallback_models: FallbackModels = ()
    system_prompt_id: Token | None = None
    system_prompt: Text | None = None
    options: ModelOptions = ModelOptions()
    tools: ToolSettings = ToolSettings()
    tool_protocol: ToolProtocol = "native"
    limits: Limits = Limits()
    approval_policy: tuple[ApprovalRule, ...] = ()
    approvals: ApprovalTerms = Field(default=ONE_APPROVER, exclude_if=lambda terms: terms == ONE_APPROVER)
    variables: JsonObject = Field(default_factory=dict)
    workspace: Token | None = Field(default=None, exclude_if=lambda workspace: workspace is None)
    """The conversation in whose workspace calls run; None for the run's own."""
    branch: Branch | None = Field(default=None, exclude_if=lambda branch: branch is None)
    """The message after which the run continues the conversation; None for the newest message."""
    workflow: WorkflowInvocation | None = Field(default=None, exclude_if=lambda workflow: workflow is None)
    """The workflow that drives the run; None for a run that a model drives."""
    traceparent: str | None = Field(default=None, exclude_if=lambda trace: trace is None)
    """The W3C trace context of the request that started it; None without one."""
    user: str = Field(default="", max_length=200, exclude_if=lambda user: user == "")
    """The user who started the run, set by the agent that records it; empty if unknown."""
    account: str = Field(default="", max_length=200, exclude_if=lambda user: user == "")
    """The user who started the workflow of the run; empty for a run that no workflow started."""
    instructions: str = Field(default="", max_length=4_000, exclude_if=lambda text: text == "")
    """What the user who started the run wants of every reply; it follows the system prompt."""
    compact: bool = Field(default=False, exclude_if=lambda compact: not compact)
    """Whether the run only replaces older messages by a summary. Its own message is not in the history."""

    @property
    def acts_for(self) -> str:
        """The user whose access the calls of the run use at servers; empty if unknown."""
        return self.account or (self.user if self.workflow is None else self.workflow.user)

    @property
    def workflow_name(self) -> str | None:
        """The name of the workflow that drives the run; None for a run that a model drives."""
        return None if self.workflow is None else self.workflow.name


class WorkflowInvocation(Stored):
    """The start of a workflow run, as recorded in its log."""

    name: Token
    parameters: JsonObject = Field(default_factory=dict)
    user: str = ""
    """The user who started it."""
    agent: RunSettings | None = Field(default=None, exclude_if=lambda agent: agent is None)
    """Settings of the agent runs that it starts; None where no model is configured."""
    built: Built | None = Field(default=None, exclude_if=lambda built: built is None)
    """The definition of a workflow without code; later changes of it do not affect this run."""


RunSettings.model_rebuild()


class RunOverrides(Wire):
    """Settings of the assistant that one request may replace. None keeps the assistant's."""

    model: str | None = Field(default=None, max_length=200)
    max_iterations: int | None = Field(default=None, ge=1, le=1000)
    run_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    tool_protocol: Literal["auto", "native", "json_text"] | None = None
    system_prompt: Text | None = Field(default=None, exclude_if=lambda prompt: prompt is None)
    """A template in place of the assistant's and the conversation's prompt."""
    options: ModelOptions = Field(
        default=ModelOptions(), exclude_if=lambda options: options == ModelOptions()
    )
    """Options of each model request; an option that is None keeps the assistant's."""
    variables: JsonObject = Field(default_factory=dict)


class ConversationSettings(RunOverrides):
    """Settings that `conversation.create` applies to all runs of the conversation."""

    # Ignored, not refused: the settings are stored too, and a newer gateway may have added fields.
    model_config = ConfigDict(extra="ignore")

    system_prompt_id: Token | None = None


TitleSource = Literal["person", "message", "model"]
"""- `person`: a client set the title.
- `message`: the title is the first line of the first message.
- `model`: a model wrote the title, or was requested to and returned none.
"""


class ConversationRecord(Stored):
    """A conversation in KV `conversations`, the gateway's index."""

    conversation_id: Token
    title: str = Field(default="", max_length=200)
    assistant: Token = "default"
    settings: ConversationSettings = ConversationSettings()
    source: RepositorySource | None = Field(default=None, exclude_if=lambda source: source is None)
    """The repository from which its workspace starts."""
    status: str = "idle"
    """`idle`, or the status of the open run."""
    created_by: str = Field(default="", max_length=200, exclude_if=lambda user: user == "")
    """The user who created it; empty if it is not known."""
    people: tuple[str, ...] | None = Field(default=None, exclude_if=lambda people: people is None)
    """The users to whom it is limited; missing for everyone of the tenant. Added when it is read."""
    pinned: bool = Field(default=False, exclude_if=lambda pinned: not pinned)
    """True if clients show it first."""
    archived: bool = Field(default=False, exclude_if=lambda archived: not archived)
    """True if lists omit it unless the request asks for archived ones."""
    labels: Labels = Field(default=(), exclude_if=lambda labels: not labels)
    """Words by which users find it, in their order."""
    title_by: TitleSource = Field(default="person", exclude_if=lambda source: source == "person")
    """The source of the title. A title that a client set is never replaced by a generated one."""
    created_at: str
    updated_at: str


class AssistantBody(Wire):
    """An assistant that a client submits. Tools are off by default."""

    name: str = Field(default="", max_length=200)
    service: str = Field(default="banksman", max_length=64)
    model: str | None = Field(default=None, max_length=200)
    fallback_models: FallbackModels = ()
    system_prompt_id: Token | None = None
    system_prompt: Text | None = None
    options: ModelOptions = ModelOptions()
    tools: ToolSettings = ToolSettings()
    limits: Limits = Limits()
    approval_policy: tuple[ApprovalRule, ...] = ()
    approvals: ApprovalTerms = ONE_APPROVER
    variables: JsonObject = Field(default_factory=dict)
    files: SubmittedFiles = ()
    """Files that each new workspace of its conversations starts with."""

    def assistant(self, assistant_id: str) -> Assistant:
        """Return the assistant to store."""
        return Assistant(
            id=assistant_id, **{name: getattr(self, name) for name in AssistantBody.model_fields}
        )


class NewAssistant(AssistantBody):
    """An assistant to create."""

    id: Token | None = None
    """None lets the gateway generate one."""


class AssistantUpdate(AssistantBody):
    """An assistant that replaces an existing one."""

    revision: int | None = None
    """The revision to replace; None replaces the current one."""


class AssistantList(Wire):
    """All assistants of a tenant, sorted by id, without the contents of their files."""

    items: tuple[Assistant, ...]
    next: None = None
    """Always null: the list has one page."""

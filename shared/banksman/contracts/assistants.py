"""Assistants: the stored configuration a run is driven by, and the settings a run resolves from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.assistant_files import AssistantFiles
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.network import NetworkPolicy
from banksman.contracts.wire import JsonObject, Stored, Text, Token

Decision = Literal["auto", "ask", "deny"]
"""
auto  the call runs at once
ask   a person decides
deny  the call gets a result `denied`; nobody is asked
"""

OnReject = Literal["abort", "feedback"]
"""
abort     one rejected call ends the run
feedback  the refusal goes to the model as that call's result
"""


class ApprovalRule(Stored):
    """One line of an approval policy; the first that matches decides."""

    tool: str = Field(default="*", max_length=128)
    """Glob over tool names."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Argument name to glob over its text; all must match."""
    action: Decision


FallbackModels = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...], Field(max_length=5)
]
"""`provider:model` of each model that is asked, in this order, when the one before it cannot answer.

That is when its provider is limited, fails or is silent beyond all retries, never when it refuses the request
itself. A model with successors gets half of the time that the run has left. Each request of a run begins
with the first choice again.
"""


class ModelOptions(Stored):
    """What goes into each model request."""

    max_tokens: int | None = Field(default=None, gt=0)
    """Output tokens of one reply; None leaves it to the provider's adapter."""
    temperature: float | None = Field(default=None, ge=0, le=2)


class ToolSettings(Stored):
    """Whether and how the model may call tools. Tools are opt-in."""

    enabled: bool = False
    allowed_tools: tuple[str, ...] | None = None
    """Names of the tools offered; None for all that are registered."""
    always_offered: tuple[str, ...] = ()
    """Names of those that are left out last when there are more than a request may hold."""
    max_iterations: int = Field(default=10, ge=1, le=1000)
    """Model requests with calls before the run ends with status `max_iterations`."""
    tool_protocol: Literal["auto", "native", "json_text"] = "auto"
    """auto takes `native` wherever the provider can."""
    final_summary: bool = False
    """True asks the model once more after a terminating call, instead of answering with its result."""
    on_reject: OnReject = "abort"
    network: NetworkPolicy | None = Field(default=None, exclude_if=lambda policy: policy is None)
    """Hosts that `web_fetch` and, when it grants that, commands may reach; None for all that the operator
    allows to `web_fetch`, and no network for commands."""


class Limits(Stored):
    """Bounds of one run; at each the run ends with its own code."""

    run_timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """Seconds of work; time spent waiting for a person does not count."""
    calls_per_reply: int = Field(default=32, ge=1, le=1000)
    """Tool calls that one reply may hold."""
    max_tokens_per_run: int | None = Field(default=None, gt=0)
    """Input and output tokens together; None for no bound."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    context_tokens: int | None = Field(default=None, ge=1_000)
    """Tokens that the model can read in one request, where it is not the deployment's table that knows; near
    it the older part of the history gives way to a summary."""


class Assistant(Stored):
    """Stored configuration of runs (a "response rule")."""

    id: Token
    revision: int = 0
    """The KV revision it was read at; a run records it."""
    name: str = Field(default="", max_length=200)
    service: str = Field(default="banksman", max_length=64)
    """Echoed as `service` in the outcome of a run."""
    model: str | None = Field(default=None, max_length=200)
    """`provider:model`; None for the deployment's default model."""
    fallback_models: FallbackModels = ()
    system_prompt_id: Token | None = None
    system_prompt: Text | None = None
    """Used when no id is given; None for the built-in prompt."""
    options: ModelOptions = ModelOptions()
    tools: ToolSettings = ToolSettings()
    limits: Limits = Limits()
    approval_policy: tuple[ApprovalRule, ...] = ()
    """In order; after the last, the tool's own `requires_approval` decides."""
    variables: JsonObject = Field(default_factory=dict)
    """Defaults of the system prompt's variables."""
    files: AssistantFiles = ()
    """What each new workspace of its conversations starts with."""


class RunSettings(Stored):
    """What a run was started with: the assistant, the conversation's settings and the request, resolved."""

    assistant_id: Token
    assistant_revision: int = 0
    service: str = "banksman"
    model: str
    """`provider:model`, never None here."""
    fallback_models: FallbackModels = ()
    system_prompt_id: Token | None = None
    system_prompt: Text | None = None
    options: ModelOptions = ModelOptions()
    tools: ToolSettings = ToolSettings()
    tool_protocol: ToolProtocol = "native"
    limits: Limits = Limits()
    approval_policy: tuple[ApprovalRule, ...] = ()
    variables: JsonObject = Field(default_factory=dict)


class RunOverrides(Stored):
    """What one request may change of its assistant."""

    model: str | None = Field(default=None, max_length=200)
    max_iterations: int | None = Field(default=None, ge=1, le=1000)
    run_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    tool_protocol: Literal["auto", "native", "json_text"] | None = None
    variables: JsonObject = Field(default_factory=dict)


class ConversationSettings(RunOverrides):
    """What `conversation.create` may set for all runs of a conversation."""

    system_prompt_id: Token | None = None


class ConversationRecord(Stored):
    """A conversation as the gateway keeps it in KV `conversations` (the index)."""

    conversation_id: Token
    title: str = Field(default="", max_length=200)
    assistant: Token = "default"
    settings: ConversationSettings = ConversationSettings()
    status: str = "idle"
    """`idle`, or the status of its open run."""
    created_at: str
    updated_at: str

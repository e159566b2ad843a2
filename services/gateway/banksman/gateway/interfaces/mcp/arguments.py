"""The arguments of the tools at `POST /mcp`. Their JSON Schemas are what models read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.approvals import ItemDecision
from banksman.contracts.frames import FrameId
from banksman.contracts.wire import JsonObject, JsonValue, Token, Wire
from banksman.gateway.operation.parameters import unrepeated_id

MAX_WAIT_S = 45
"""Maximum seconds of a wait: clients abandon a call after 60 seconds by default, and miss its result."""
DEFAULT_WAIT_S = 20
MAX_PAGE = 100

WaitS = Annotated[float, Field(ge=0, le=MAX_WAIT_S)]
RunId = Annotated[str, Field(min_length=1, max_length=256)]


class _ChangeArguments(Wire):
    """The `id` of a request that changes state; every such request has one."""

    request_id: FrameId = Field(default_factory=unrepeated_id)
    """Identifies the request for 24 hours: a repeat with the same id returns the first result and starts
    nothing again. Leave it out for a new request."""


class StartRunArguments(_ChangeArguments):
    message: str = Field(min_length=1, max_length=200_000)
    """The task for the agent."""
    conversation_id: Token | None = None
    """A conversation to continue; leave it out to begin one."""
    assistant: Token = "default"
    """The assistant of a new conversation."""
    model: str | None = Field(default=None, max_length=200)
    """`provider:model` of a new conversation; leave it out for the assistant's."""
    wait_s: WaitS = DEFAULT_WAIT_S
    """Seconds to wait for the outcome. A longer run continues: follow it with `read_run`."""


class ReadRunArguments(Wire):
    run_id: RunId
    wait_s: WaitS = 0
    """Seconds to wait until the run ends or needs a decision."""


class CancelRunArguments(_ChangeArguments):
    run_id: RunId
    reason: str | None = Field(default=None, max_length=2000)


class PageArguments(Wire):
    """Arguments of `list_approvals` and `list_inputs`."""

    after: int = Field(default=0, ge=0, le=2**63 - 2)
    """`next` of the previous page."""


class DecideApprovalArguments(_ChangeArguments):
    approval_id: Token
    decision: Literal["approve", "reject"] | None = None
    """The decision on all calls of the request; leave it out if `decisions` is given."""
    decisions: tuple[ItemDecision, ...] = Field(default=(), max_length=1000)
    """One decision for each call, which may have edited arguments."""
    digests: tuple[Annotated[str, Field(max_length=64)], ...] = Field(default=(), max_length=1000)
    """The digests of the calls as they were shown; a request with other calls is then refused."""


class ProvideInputArguments(_ChangeArguments):
    input_id: Token
    """`request_id` of the open request, as `list_inputs` shows it."""
    value: JsonValue
    """A value that fits the request's schema."""


class NoArguments(Wire):
    """A tool without arguments."""


class StartWorkflowArguments(_ChangeArguments):
    workflow: Token
    """The name, as `list_workflows` shows it."""
    parameters: JsonObject = Field(default_factory=dict)
    """The values of its form."""
    wait_s: WaitS = DEFAULT_WAIT_S
    """Seconds to wait for the outcome."""

"""Messages between the owner of a run and the runner or tool server that executes its calls."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from banksman.contracts.approvals import InputResolved
from banksman.contracts.mcp import McpTarget
from banksman.contracts.tools import SearchChoice, ToolCall, ToolResult
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.contracts.workspaces import WorkspaceOffer, WorkspacePlacement


class SearchTarget(SearchChoice):
    """The search provider of a tenant, for a call of `web_search`."""

    key: str | None = Field(default=None, repr=False)
    """None in the request of an owner, whose placement adds it."""


class CallRequest(Stored):
    """`tool.call.{r}.{t}.{c}`: execute this call at most once."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    attempt: Token
    """The call's id, `-` and the number of the attempt: the key of its slots for start and result."""
    call: ToolCall
    digest: str
    runner_epoch: int
    """The runner epoch at which the owner placed the workspace. Another epoch replies `wrong_epoch`."""
    deadline: Timestamp
    """Time at which the run times out, by the clock of the sender; see `with_local_deadline`."""
    left_s: float
    """Seconds until `deadline` when the request was sent."""
    progress: bool = True
    workspace: Token | None = None
    """The conversation whose workspace the call uses; None means `conversation_id`."""
    place: WorkspacePlacement = WorkspacePlacement()
    """The state of the workspace that the owner knows. A tool server ignores it."""
    ticket: str | None = None
    """Proves that the call was sent to this runner, which repeats it in its start and its results. None until
    the request is sent."""
    mcp: McpTarget | None = Field(default=None, exclude_if=lambda target: target is None, repr=False)
    """For a tool of an MCP server: the server's configuration with its secrets. No event contains it."""

    search: SearchTarget | None = Field(default=None, exclude_if=lambda target: target is None, repr=False)
    """For `web_search`: the provider with its key. No event contains it."""

    secrets: dict[str, str] = Field(default_factory=dict, exclude_if=lambda secrets: not secrets, repr=False)
    """The tenant's secrets that the tool declares, by name. No event contains them."""
    traceparent: str | None = Field(default=None, exclude_if=lambda trace: trace is None)
    output_ticket: str | None = Field(default=None, exclude_if=lambda ticket: ticket is None)
    """Proves to gateways that live output is of this call; repeated in each `CallProgress`."""
    user: str = Field(default="", max_length=200, exclude_if=lambda user: user == "")
    """The user who started the run, for a command; for whom the run acts, for a tool of an MCP server."""
    toolchain: Token | None = Field(default=None, exclude_if=lambda toolchain: toolchain is None)
    """The toolchain of the assistant, for a command."""
    answer: InputResolved | None = Field(default=None, exclude_if=lambda answer: answer is None, repr=False)
    """The answer to what the server requested in an earlier attempt, which this attempt continues."""
    start_suffices: bool = Field(default=False, exclude_if=lambda suffices: not suffices)
    """Whether a start that is stored at once may replace the reply `accepted`."""

    @property
    def workspace_id(self) -> str:
        """The conversation whose workspace the call uses."""
        return self.workspace or self.conversation_id

    def with_local_deadline(self, now: datetime) -> CallRequest:
        """Return the request with its deadline by the receiver's clock; `now` is the time of receipt."""
        return self.model_copy(update={"deadline": now + timedelta(seconds=self.left_s)})


CallReplyKind = Literal["accepted", "busy", "wrong_epoch", "done", "refused"]
"""
accepted     the call is queued or running
busy         the queue is full; send the request again
wrong_epoch  the runner restarted, or the workspace moved, since the placement
done         a result is stored
refused      the digest does not match, or the sandbox does not isolate calls; `reason` names the cause
"""


class CallReply(Stored):
    """The immediate reply to a `CallRequest`."""

    answer: CallReplyKind
    reason: str | None = None
    sign_in: bool = Field(default=False, exclude_if=lambda sign_in: not sign_in)
    """Whether it was refused because the user for whom the run acts has not signed in at the server."""
    runner_epoch: int | None = Field(default=None, exclude_if=lambda epoch: epoch is None)
    """Of the process of a tool server that replies to `PRESENCE`."""
    leased_at: int | None = Field(default=None, exclude_if=lambda revision: revision is None)
    """The revision with which this process took its lease. Earlier processes that do not reply have ended."""


class CallStarted(Stored):
    """`tool.started`: the one start of an attempt. If `void`, the attempt can never start."""

    v: Literal[1] = 1
    conversation_id: Token
    attempt: Token
    runner: Token | None
    """The runner that executes the call; None if `void`."""
    runner_epoch: int = 0
    void: bool = False
    moved: bool = False
    """With `void`: True if another attempt executes the call, False if the call is never executed."""
    ts: Timestamp
    ticket: str | None = None
    """The ticket of the request; None if `void`."""


class CallFinished(Stored):
    """`tool.result`: the one result of an attempt."""

    v: Literal[1] = 1
    conversation_id: Token
    attempt: Token
    result: ToolResult
    ticket: str | None = None
    """The ticket of the request; None from owners."""


class LateResult(Stored):
    """`dead.NOTES.late-result`: an outcome that arrived after another result was stored; recorded only."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    attempt: Token
    tool: str
    digest: str
    """Digest of the call with its arguments; the log contains the arguments."""
    runner: Token
    runner_epoch: int
    ended_at: Timestamp
    result: ToolResult
    ticket: str | None = None


PRESENCE = "presence"
"""The attempt of a cancel request that ends no call. The reply shows that the process which holds a lease is
connected. A later process of the same tool server replies in its place, `SUCCESSOR_S` later."""

SUCCESSOR_S = 0.25
"""Seconds that a later process leaves to the process that is checked: only one reply reaches the agent."""


class CancelCall(Stored):
    """`tool.cancel.{r}.{t}.{k}`: end a started attempt and store its result."""

    attempt: Token
    reason: Literal["cancelled", "timeout"] = "cancelled"
    runner_epoch: int | None = Field(default=None, exclude_if=lambda epoch: epoch is None)
    """Of the process of a tool server whose `PRESENCE` is checked."""
    renewed_at: int | None = Field(default=None, exclude_if=lambda revision: revision is None)
    """The revision with which that process last renewed its lease."""


PROGRESS_AFTER_S = 0.2
"""Seconds after which the progress of a call is published. Shorter calls publish only their result."""


class CallProgress(Stored):
    """`tool.progress.{t}.{c}`: output of a running call; lossy."""

    conversation_id: Token
    run_id: Token
    tool_call_id: Token
    kind: Literal["started", "output"]
    runner: Token
    stream: Literal["stdout", "stderr"] | None = None
    text: str = ""
    ticket: str | None = None
    """The `output_ticket` of the request. Gateways drop a message without it."""


DRAINING = "draining"
"""`RunnerLease.problem` of a process that drains; another process of the server may serve."""


class RunnerLease(Stored):
    """KV `runners.{r}`: the process is alive as long as the key exists."""

    runner: Token
    runner_epoch: int
    load: int = 0
    """Number of running and waiting calls."""
    workspaces: bool = True
    """False for a tool server, which serves its own tools and no workspaces."""
    serving: bool = True
    """False if it accepts no calls; `problem` states why."""
    problem: str | None = None
    """`DRAINING`, or the reason why its sandbox does not isolate calls; None if it accepts calls."""
    warning: str | None = None
    """What an operator should look at although it accepts calls, such as a full disk."""
    places: int | None = None
    """Maximum number of commands that run at a time; further calls wait. None for a tool server."""
    version: str | None = None
    started_at: Timestamp | None = None
    offer: WorkspaceOffer | None = Field(default=None, exclude_if=lambda offer: offer is None)
    """None for a tool server, and a runner of an earlier version."""

    @property
    def draining(self) -> bool:
        """True if the process accepts no calls because it drains."""
        return not self.serving and self.problem == DRAINING

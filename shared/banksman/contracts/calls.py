"""Messages between the owner of a run and the runner or tool server that executes its calls."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from banksman.contracts.approvals import InputResolved
from banksman.contracts.mcp import (
    MAX_PROMPT_ARGUMENTS,
    AccessToken,
    Authorization,
    DiscoverSignIn,
    Hidden,
    McpTarget,
    McpTransport,
    RefusedTool,
    RequestToken,
    ServedPrompt,
    ServedTool,
)
from banksman.contracts.processes import ProcessInfo, ProcessOutput
from banksman.contracts.tools import Change, SearchChoice, ToolCall, ToolResult
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.contracts.workspaces import PlacedRequest, WorkspaceForget, WorkspaceOffer, WorkspacePlacement


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


class FileList(PlacedRequest):
    """Lists the first files below a path, sorted by path; the reply may have fewer than `limit`."""

    op: Literal["list"] = "list"
    path: str = ""
    after: str = Field(default="", exclude_if=lambda after: not after)
    limit: int = Field(default=1000, ge=1, le=10_000)


MAX_FILE_BYTES = 512 * 1024
"""Bytes of a file in one message."""


class FileRead(PlacedRequest):
    """Reads a slice of a file, or an image as vendors of models take it."""

    op: Literal["read"] = "read"
    path: str = Field(max_length=4096)
    offset: int = Field(default=0, ge=0)
    max_bytes: int = Field(default=MAX_FILE_BYTES, ge=1, le=MAX_FILE_BYTES)
    image: bool = Field(default=False, exclude_if=lambda image: not image)
    """True returns the whole image as PNG or JPEG, reduced to `MAX_FILE_BYTES`."""


class FileWrite(PlacedRequest):
    """Uploads a slice; the last slice replaces the file."""

    op: Literal["write"] = "write"
    path: str = Field(max_length=4096)
    upload: Token
    offset: int = Field(ge=0)
    data_base64: str
    last: bool


class UploadEnd(PlacedRequest):
    """Removes an upload whose client has gone."""

    op: Literal["end_upload"] = "end_upload"
    upload: Token


class FileDelete(PlacedRequest):
    """Deletes a file."""

    op: Literal["delete"] = "delete"
    path: str = Field(max_length=4096)


class FileUnpack(PlacedRequest):
    """Lets a workspace start from an archive, which is its only file and is replaced by its content."""

    op: Literal["unpack"] = "unpack"
    path: str = Field(max_length=255, pattern=r"^[^/\x00]+$")


class FileDiff(PlacedRequest):
    """Compares the files with those before a run changed them."""

    op: Literal["diff"] = "diff"
    since: str = Field(default="", max_length=200)
    """A run; empty for the state with which the workspace began."""
    path: str = Field(default="", max_length=4096)
    """Only this file; empty for all."""


class ProcessList(PlacedRequest):
    """Lists the processes that outlive their calls."""

    op: Literal["process.list"] = "process.list"


class ProcessRead(PlacedRequest):
    """Reads a part of the output of a process."""

    op: Literal["process.read"] = "process.read"
    process_id: str = Field(max_length=200)
    after: int | None = Field(default=None, ge=0)
    """Bytes before the part; None for the last part."""


class ProcessStop(PlacedRequest):
    """Ends a process for a user."""

    op: Literal["process.stop"] = "process.stop"
    process_id: str = Field(max_length=200)


ProcessRequest = ProcessList | ProcessRead | ProcessStop


class FindMcpTools(PlacedRequest):
    """Lists the tools and prompts of an MCP server; a `stdio` server runs in the workspace."""

    op: Literal["mcp.find"] = "mcp.find"
    transport: McpTransport = Field(repr=False)
    hidden: Hidden = ()


class GetMcpPrompt(PlacedRequest):
    """Gets the text of a prompt of an MCP server; a `stdio` server runs in the workspace."""

    op: Literal["mcp.prompt"] = "mcp.prompt"
    transport: McpTransport = Field(repr=False)
    hidden: Hidden = ()
    name: str = Field(max_length=256)
    arguments: dict[str, str] = Field(default_factory=dict, max_length=MAX_PROMPT_ARGUMENTS)


McpRequest = FindMcpTools | GetMcpPrompt | DiscoverSignIn | RequestToken
"""The requests for which a runner connects to an MCP server or to its authorization server."""

FileRequest = Annotated[
    FileList
    | FileRead
    | FileWrite
    | FileDelete
    | FileUnpack
    | FileDiff
    | ProcessRequest
    | UploadEnd
    | WorkspaceForget
    | McpRequest,
    Field(discriminator="op"),
]


class FileEntry(Stored):
    """One file of a workspace."""

    path: str
    size: int
    """Bytes."""
    modified_at: Timestamp


NotCompared = Literal["binary", "too_large", "unknown", "no_room"]
"""
binary     it is no text in UTF-8
too_large  it is longer than 256 KiB
unknown    its earlier content is unknown, or it is neither a file nor a link
no_room    the patch would be longer than 512 KiB
"""


class DiffedFile(Stored):
    """A file of a workspace that differs from its earlier state."""

    path: str
    change: Change
    not_compared: NotCompared | None = None
    """Why the patch does not contain it; null if it does."""


class WorkspaceDiff(Stored):
    """What has changed in a workspace."""

    files: tuple[DiffedFile, ...] = ()
    """The first 1,000 changed files, sorted by path."""
    more: int = 0
    """The number of further changed files, which are in no patch."""
    patch: str = ""
    """A patch for `git apply`; lines before the first file name those that it does not contain."""


class FileReply(Stored):
    """The reply to a `FileRequest`; `error` is set if it failed."""

    error: str | None = None
    code: str | None = Field(default=None, exclude_if=lambda code: code is None)
    """An `ErrorCode`; None if the path is at fault."""
    moved: bool = False
    """True if nothing was done because the workspace moved. Place it again and repeat the request."""
    items: tuple[FileEntry, ...] = ()
    data_base64: str | None = None
    total_bytes: int | None = None
    more: bool = False
    diff: WorkspaceDiff | None = Field(default=None, exclude_if=lambda diff: diff is None)
    """The reply to `FileDiff`."""
    processes: tuple[ProcessInfo, ...] = Field(default=(), exclude_if=lambda processes: not processes)
    """The reply to `ProcessList`; the stopped process in the reply to `ProcessStop`."""
    output: ProcessOutput | None = Field(default=None, exclude_if=lambda output: output is None)
    """The reply to `ProcessRead`."""
    tools: tuple[ServedTool, ...] = Field(default=(), exclude_if=lambda tools: not tools)
    """The reply to `FindMcpTools`."""
    prompts: tuple[ServedPrompt, ...] = Field(default=(), exclude_if=lambda prompts: not prompts)
    """The prompts in the reply to `FindMcpTools`."""
    prompt: str | None = Field(default=None, exclude_if=lambda prompt: prompt is None)
    """The text in the reply to `GetMcpPrompt`."""
    refused_tools: tuple[RefusedTool, ...] = Field(default=(), exclude_if=lambda tools: not tools)
    """Tools of the server that cannot be called, such as one without a name."""
    needs_sign_in: bool = Field(default=False, exclude_if=lambda needs: not needs)
    """Whether the server of `FindMcpTools` or `GetMcpPrompt` responded with 401."""
    authorization: Authorization | None = Field(default=None, exclude_if=lambda found: found is None)
    """The reply to `DiscoverSignIn`."""
    token: AccessToken | None = Field(default=None, exclude_if=lambda token: token is None)
    """The reply to `RequestToken`."""
    refused: bool = Field(default=False, exclude_if=lambda refused: not refused)
    """Whether the authorization server refused the grant of `RequestToken`; a retry fails too."""

    @property
    def text(self) -> str | None:
        """The data as UTF-8 text with undecodable bytes replaced; None if the reply has no data."""
        if self.error is not None or self.data_base64 is None:
            return None
        return base64.b64decode(self.data_base64).decode("utf-8", "replace")


class Delta(Stored):
    """`delta.{t}.{c}`: a piece of an unfinished message; lossy, replaced by `message.completed`."""

    conversation_id: Token
    run_id: Token
    message_id: Token
    kind: Literal["message", "reasoning"] = "message"
    offset: int
    """Number of characters of the message before this piece."""
    text: str
    repeated: bool = Field(default=False, exclude_if=lambda repeated: not repeated)
    """Whether it was published before, and again for a client that subscribed later."""


WaitReason = Literal["overloaded", "rate_limited", "unreachable", "failed"]
"""
overloaded    the vendor has no capacity (503, 529)
rate_limited  the vendor's limit of requests or tokens is reached (429)
unreachable   no connection
failed        another transient error, such as 500 or a stream that broke off
"""


class ModelPause(Stored):
    """A model request failed and is sent again after a pause. Any later frame of the run ends the wait."""

    model: str
    """`provider:model`."""
    reason: WaitReason
    error: str
    """What the vendor returned, without secrets."""
    attempt: int
    """Number of the failed attempt, from 1."""
    next_attempt_s: float
    """Seconds until the next attempt, from the time of this message."""


class ModelWaiting(Stored):
    """`delta.{t}.{c}`: the run waits for its model; lossy."""

    conversation_id: Token
    run_id: Token
    message_id: Token
    """The message that the request would write."""
    kind: Literal["waiting"] = "waiting"
    pause: ModelPause


def live_output(data: bytes) -> Delta | ModelWaiting:
    """Return a message of `delta.{t}.{c}`; raise `ValidationError` if it is neither."""
    try:
        return Delta.model_validate_json(data)
    except ValidationError:
        return ModelWaiting.model_validate_json(data)

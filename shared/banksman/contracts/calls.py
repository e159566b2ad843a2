"""What travels between the owner of a run and whoever executes its calls."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.contracts.workspaces import WorkspaceForget, WorkspacePlacement


class CallRequest(Stored):
    """`tool.call.{r}.{t}.{c}`: run this call, once."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    attempt: Token
    """The call's id, `-`, and the number of the attempt: the key of its two slots."""
    call: ToolCall
    digest: str
    runner_epoch: int
    """The epoch the caller placed the workspace at; another one answers `wrong_epoch`."""
    deadline: Timestamp
    """When the run's time is over, by the clock of whoever asks; see `with_local_deadline`."""
    left_s: float | None = None
    """Seconds that were left of it. None in requests of older agents."""
    progress: bool = True
    workspace: Token | None = None
    """The conversation in whose workspace it runs; None for that of `conversation_id`."""
    place: WorkspacePlacement = WorkspacePlacement()
    """The state of the workspace that the caller knows; a tool server keeps none."""

    @property
    def workspace_id(self) -> str:
        """The conversation in whose workspace it runs."""
        return self.workspace or self.conversation_id

    def with_local_deadline(self, now: datetime) -> CallRequest:
        """The request with its deadline by the clock of whoever was asked, at the moment it came."""
        if self.left_s is None:
            return self
        return self.model_copy(update={"deadline": now + timedelta(seconds=self.left_s)})


CallReplyKind = Literal["accepted", "busy", "wrong_epoch", "done", "refused"]
"""
accepted     it will run, or runs already
busy         the queue is full; ask again
wrong_epoch  the runner restarted, or the workspace moved, since it was placed
done         a result is stored
refused      the digest does not match, or the runner's sandbox does not hold; `reason` says which
"""


class CallReply(Stored):
    """The immediate answer to a `CallRequest`."""

    answer: CallReplyKind
    reason: str | None = None


class CallStarted(Stored):
    """`tool.started`: the one start of an attempt. With `void` it can never start."""

    v: Literal[1] = 1
    conversation_id: Token
    attempt: Token
    runner: Token | None
    """Who executes; None when void."""
    runner_epoch: int = 0
    void: bool = False
    moved: bool = False
    """With `void`: whether the next attempt goes on with the call, or the call is never executed."""
    ts: Timestamp


class CallFinished(Stored):
    """`tool.result`: the one result of an attempt."""

    v: Literal[1] = 1
    conversation_id: Token
    attempt: Token
    result: ToolResult


class LateResult(Stored):
    """`dead.NOTES.late-result`: what a call came to after its slot held another result; never its result."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    attempt: Token
    tool: str
    digest: str
    """Of the call, arguments included; they are in the log."""
    runner: Token
    runner_epoch: int
    ended_at: Timestamp
    result: ToolResult


class CancelCall(Stored):
    """`tool.cancel.{r}.{t}.{k}`: end a started attempt and store its result."""

    attempt: Token
    reason: Literal["cancelled", "timeout"] = "cancelled"


class CallProgress(Stored):
    """`tool.progress.{t}.{c}`: running output, lossy."""

    conversation_id: Token
    run_id: Token
    tool_call_id: Token
    kind: Literal["started", "output"]
    runner: Token
    stream: Literal["stdout", "stderr"] | None = None
    text: str = ""


DRAINING = "draining"
"""`RunnerLease.problem` of a process that ends in order: another one of it is expected."""


class RunnerLease(Stored):
    """KV `runners.{r}`: alive for as long as the key is there."""

    runner: Token
    runner_epoch: int
    load: int = 0
    """Calls running or waiting."""
    workspaces: bool = True
    """False for a tool server: it serves its own tools and keeps no workspaces."""
    serving: bool = True
    """False when it takes no more calls; `problem` says why."""
    problem: str | None = None
    """`DRAINING`, or what keeps its sandbox from holding."""

    @property
    def draining(self) -> bool:
        """Whether it takes no more calls because it ends in order."""
        return not self.serving and self.problem == DRAINING


class _OnFiles(Stored):
    """What every file request says of the workspace."""

    place: WorkspacePlacement = WorkspacePlacement()


class FileList(_OnFiles):
    """Lists the files below a path."""

    op: Literal["list"] = "list"
    path: str = ""
    limit: int = Field(default=1000, ge=1, le=10_000)


class FileRead(_OnFiles):
    """Reads a slice of a file."""

    op: Literal["read"] = "read"
    path: str = Field(max_length=4096)
    offset: int = Field(default=0, ge=0)
    max_bytes: int = Field(default=512 * 1024, ge=1, le=512 * 1024)


class FileWrite(_OnFiles):
    """Writes a slice; the last one replaces the file."""

    op: Literal["write"] = "write"
    path: str = Field(max_length=4096)
    upload: Token
    offset: int = Field(ge=0)
    data_base64: str
    last: bool


class FileDelete(_OnFiles):
    """Deletes a file."""

    op: Literal["delete"] = "delete"
    path: str = Field(max_length=4096)


FileRequest = Annotated[
    FileList | FileRead | FileWrite | FileDelete | WorkspaceForget, Field(discriminator="op")
]


class FileEntry(Stored):
    """One file of a workspace."""

    path: str
    size: int
    """Bytes."""
    modified_at: Timestamp


class FileReply(Stored):
    """The answer to a `FileRequest`; `error` when it failed."""

    error: str | None = None
    moved: bool = False
    """Nothing was done: the workspace moved since it was placed. Place it anew and ask again."""
    items: tuple[FileEntry, ...] = ()
    data_base64: str | None = None
    total_bytes: int | None = None
    more: bool = False

    @property
    def text(self) -> str | None:
        """The data as text, undecodable bytes replaced; None when there is none."""
        if self.error is not None or self.data_base64 is None:
            return None
        return base64.b64decode(self.data_base64).decode("utf-8", "replace")


class Delta(Stored):
    """`delta.{t}.{c}`: text of a message that is being written; lossy, replaced by `message.completed`."""

    conversation_id: Token
    run_id: Token
    message_id: Token
    kind: Literal["message", "reasoning"] = "message"
    offset: int
    """Characters of the message before this piece."""
    text: str

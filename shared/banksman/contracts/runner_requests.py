"""What a gateway asks of the runner of a workspace: its files, its processes, and MCP servers."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.mcp import (
    MAX_PROMPT_ARGUMENTS,
    AccessToken,
    Authorization,
    Hidden,
    McpTransport,
    OAuthClient,
    RefusedTool,
    ServedPrompt,
    ServedTool,
    Url,
)
from banksman.contracts.processes import ProcessInfo, ProcessOutput
from banksman.contracts.tools import Change
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.contracts.workspaces import PlacedRequest, WorkspaceForget


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


class DiscoverSignIn(PlacedRequest):
    """Discovers the authorization server of an MCP server, and registers this platform there.

    Like `RequestToken`, it uses no workspace, and any runner serves it.
    """

    op: Literal["mcp.sign_in"] = "mcp.sign_in"
    url: Url
    redirect_uri: Url
    client: OAuthClient | None = None
    """The client to use; None, or a client of another authorization server, registers a new one."""


class RequestToken(PlacedRequest):
    """Requests a token of an authorization server."""

    op: Literal["mcp.token"] = "mcp.token"
    token_endpoint: Url
    client: OAuthClient
    form: dict[str, str] = Field(max_length=8, repr=False)
    """The form fields of the grant, without those that identify the client."""


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

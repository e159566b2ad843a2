"""The bodies that only NATS has: the parameters that HTTP has in path and query, and slices of files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from banksman.contracts.calls import FileEntry
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.registry import SystemPrompt
from banksman.contracts.wire import JsonObject, Stored, Token, Wire
from banksman.gateway.files.files import SLICE_BYTES
from banksman.gateway.mcp_servers.bodies import GatewayUrl, McpClientBody
from banksman.gateway.service.bodies import PromptBody

Path = Annotated[str, Field(max_length=4096)]
MAX_ENTRIES = 1_000
MAX_BASE64 = 4 * (SLICE_BYTES // 3 + 1)


class ListPrompts(Wire):
    """Request a page of the system prompts, sorted by id."""

    after: Token | None = None
    """`next` of the previous page: the id of its last prompt."""
    limit: int = Field(default=50, ge=1, le=200)


class UpdatePrompt(PromptBody):
    """The new content of a system prompt."""


class EnhancePrompt(Wire):
    """Request a prompt with tools and instructions."""

    protocol: ToolProtocol | None = None
    """None for the protocol of the conversation or assistant; without either, of the assistant `default`."""
    budget_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    variables: JsonObject | None = None
    """Values for the placeholders; None leaves them unchanged."""
    assistant: Token | None = None
    conversation_id: Token | None = None
    user_message: str = Field(default="", max_length=20_000)


class ListFiles(Wire):
    """Request a page of the files below a path, sorted by path."""

    path: Path = ""
    after: Path = ""
    """`next` of the previous page: the path of its last file."""
    limit: int = Field(default=MAX_ENTRIES, ge=1, le=MAX_ENTRIES)


class ReadFile(Wire):
    """Request a slice of a file."""

    path: Path
    offset: int = Field(default=0, ge=0)
    """Bytes before the slice."""


class WriteFile(Wire):
    """Store a file, or a slice of it; the last slice replaces the file."""

    path: Path
    data_base64: str = Field(max_length=MAX_BASE64)
    """At most 524,288 bytes."""
    upload: Token | None = None
    """A new id, the same in all slices of a file; None for a file of one slice."""
    offset: int = Field(default=0, ge=0)
    """Bytes before the slice."""
    last: bool = True


class DeleteFile(Wire):
    """Delete a file."""

    path: Path


class ReadOutput(Wire):
    """Request a slice of the complete output of a call."""

    tool_call_id: Token
    offset: int = Field(default=0, ge=0)


class BeginMcpSignIn(McpClientBody):
    """How to sign in at an MCP server."""

    gateway_url: GatewayUrl
    """The address of the gateway as browsers reach it."""


class FileSlice(Stored):
    """A slice of a file or of an output, of at most 524,288 bytes."""

    offset: int
    data_base64: str
    more: bool
    """Whether bytes follow: request them with the offset after this slice."""


class PromptPage(Stored):
    """A page of the system prompts."""

    items: tuple[SystemPrompt, ...]
    next: Token | None
    """`after` of the next page; null at the end."""


class FilePage(Stored):
    """A page of the files of a workspace."""

    items: tuple[FileEntry, ...]
    next: str | None
    """`after` of the next page; null at the end."""

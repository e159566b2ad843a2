"""The bodies that HTTP and NATS share. OpenAPI and AsyncAPI are generated from them."""

from __future__ import annotations

from typing import TypeVar

from pydantic import Field

from banksman.contracts.messages import ToolProtocol
from banksman.contracts.tenant_secrets import MAX_SECRET_CHARS, MIN_SECRET_CHARS, SecretServers
from banksman.contracts.wire import Stored, Token
from banksman.gateway.operation.bodies import RequestBody

T = TypeVar("T")


class PromptBody(RequestBody):
    """The content of a system prompt."""

    name: str = Field(default="", max_length=200)
    content: str = Field(max_length=256 * 1024)


class NewPrompt(PromptBody):
    """A system prompt to create."""

    id: Token | None = None
    """None for a generated id."""


class SecretBody(RequestBody):
    """The value of a secret."""

    # The limits are checked by the service, whose error does not show the value.
    value: str = Field(
        repr=False, json_schema_extra={"minLength": MIN_SECRET_CHARS, "maxLength": MAX_SECRET_CHARS}
    )
    """8 to 8,000 characters without NUL."""
    servers: SecretServers | None = None
    """The only servers that receive the secret: names of tool servers, and `mcp:ID` for MCP servers. If
    omitted, a new secret is for all servers of the tenant, and a stored secret remains for its named ones."""


class StoredFile(Stored):
    """A file that was uploaded."""

    path: str
    size: int
    """Bytes."""


class EnhancedPromptBody(Stored):
    """A system prompt with tools and instructions."""

    id: Token
    name: str
    content: str
    base: str
    """The rendered prompt without tools and instructions."""
    tools: tuple[str, ...]
    dropped_tools: tuple[str, ...]
    """Tools that did not fit, in the order in which they were dropped."""
    shortened: bool
    """Whether descriptions were cut to fit."""
    estimated_tokens: int
    protocol: ToolProtocol
    revision: int

"""The bodies that describe servers of the Model Context Protocol, and those for the sign-in at them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from banksman.contracts import mcp
from banksman.contracts.urls import checked_url
from banksman.contracts.wire import JsonObject, Stored, Timestamp
from banksman.gateway.mcp_servers.servers import ConfiguredServers, LookedAt
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.parameters import RequestBody


class Approval(RequestBody):
    """Approves exactly the changes of a server that were shown."""

    digest: str = Field(max_length=64)
    """`changes_digest` of the server."""


class TransportDescription(Stored):
    """How a server is reached, without its secrets."""

    type: Literal["stdio", "http"]
    command: tuple[str, ...] | None = None
    url: str | None = None
    secrets: tuple[str, ...]
    """Names of its environment variables or headers."""


class McpToolDescription(Stored):
    """A tool of a server."""

    name: str
    """The name for models."""
    tool: str
    """The server's own name for it."""
    description: str
    input_schema: JsonObject
    requires_approval: bool
    """Whether each call needs a user's approval, unless an assistant's policy decides."""


class McpToolChange(McpToolDescription):
    """A tool that waits for an administrator."""

    replaces: McpToolDescription | None = None
    """The tool as it was approved before the server changed it; null for a new one."""


class McpSignedIn(Stored):
    """The access that a user gave by signing in, without its tokens."""

    user: str
    at: Timestamp
    expires_at: Timestamp | None
    """Expiry of the token, which is renewed before a call if the server allows that."""


class McpServerDescription(Stored):
    """A server without its secrets."""

    id: str
    transport: TransportDescription
    description: str
    trusted: bool
    timeout_s: float
    revision: int
    """Revision of the configuration, which each change increases."""
    tools: tuple[McpToolDescription, ...]
    """The approved tools."""
    changes: tuple[McpToolChange, ...]
    """New and changed tools, which are not offered before they are approved."""
    prompts: tuple[mcp.ServedPrompt, ...] = ()
    """The prompts that users are offered."""
    changes_digest: str | None
    """Digest with which `approve` approves exactly these changes; null if there are none."""
    found_at: Timestamp | None
    """When its tools were listed last."""
    created_at: Timestamp
    created_by: str
    problem: str | None = None
    """Reason why the last listing of its tools, or the last sign-in, failed."""
    problem_code: mcp.McpProblem | None = None
    """Kind of the problem. The text may change between versions, the code does not."""
    refused: tuple[mcp.RefusedTool, ...] = ()
    """Tools that cannot be called, and approved tools that cannot be offered, with the reason."""
    needs_sign_in: bool = False
    """Whether it responded with 401, or its tokens have expired: `POST …/sign-in` begins a sign-in."""
    sign_in: mcp.SignInBy = "tenant"
    """Whose access calls use. With `user`, `needs_sign_in` and `signed_in` are those of the caller."""
    signed_in: McpSignedIn | None = None
    """The access that a user gave; null without one."""


class McpAccountDescription(Stored):
    """A server at which each user signs in, and the sign-in of the caller."""

    id: str
    description: str
    needs_sign_in: bool
    """Whether runs of the caller cannot call its tools before a sign-in: `POST …/sign-in` begins one."""
    signed_in: McpSignedIn | None = None


Word = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", max_length=2_000)]
GatewayUrl = Annotated[
    str,
    StringConstraints(pattern=r"^https?://[^/@\s?#]+(/[^\s?#@]*)?$", max_length=500),
    AfterValidator(checked_url),
]


class McpClientBody(RequestBody):
    """The client of a sign-in. Without an id, one is registered at the authorization server."""

    client_id: Word | None = None
    """The id of a client that the authorization server knows; without it, one is registered."""
    client_secret: Word | None = Field(default=None, repr=False)
    """The secret of that client."""

    @property
    def client(self) -> mcp.OAuthClient | None:
        if self.client_id is None:
            return None
        method = "none" if self.client_secret is None else "client_secret_basic"
        return mcp.OAuthClient(client_id=self.client_id, client_secret=self.client_secret, method=method)


class McpOwnSignInBody(RequestBody):
    """How a user signs in. All fields may be absent."""

    gateway_url: GatewayUrl | None = None
    """The address of this gateway as browsers reach it; by default, the one of this request."""
    to_page: bool = False
    """Whether the browser shows the server on the page afterwards, even if the sign-in fails."""


class McpSignInBody(McpOwnSignInBody, McpClientBody):
    """How to sign in. All fields may be absent."""


class BeginOwnSignIn(RequestBody):
    """How to sign in at an MCP server."""

    gateway_url: GatewayUrl
    """The address of the gateway as browsers reach it."""


class BeginMcpSignIn(BeginOwnSignIn, McpClientBody):
    """How to sign in at an MCP server."""


class McpSignInStarted(Stored):
    """A sign-in that a user may finish within ten minutes."""

    url: str
    """The page of the authorization server: open it in a browser."""


class McpSignInReturned(RequestBody):
    """Finishes a sign-in that was begun by the same user of the API."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://\S+[?&]state=\S+$", max_length=20_000)]
    """The address to which the browser was redirected, with `state` and the code."""


async def described_to(
    caller: Caller, servers: ConfiguredServers, looked_at: LookedAt
) -> McpServerDescription:
    """Describe a server; if each user signs in there, with the sign-in of the caller."""
    server = await servers.seen_by(caller, looked_at.server)
    return described(LookedAt(server, looked_at.refused))


def described_account(server: mcp.McpServer) -> McpAccountDescription:
    """Describe a server as `ConfiguredServers.seen_by` returns it."""
    return McpAccountDescription(**dict(described(LookedAt(server))))


def described(looked_at: LookedAt) -> McpServerDescription:
    server, signed_in = looked_at.server, looked_at.server.signed_in
    shown: dict[str, Any] = {
        "transport": TransportDescription(**dict(server.transport), secrets=tuple(server.transport.values)),
        "tools": tuple(_described_tool(server, tool) for tool in server.tools),
        "changes": tuple(_described_change(server, tool) for tool in server.changes),
        "changes_digest": looked_at.changes_digest,
        "problem_code": server.problem_code,
        "refused": looked_at.refused,
        "signed_in": signed_in and McpSignedIn(**dict(signed_in)),
    }
    return McpServerDescription(**{**dict(server), **shown})


def _described_tool(server: mcp.McpServer, tool: mcp.ServedTool) -> McpToolDescription:
    return McpToolDescription(tool=tool.name, **dict(mcp.definition_of(server, tool)))


def _described_change(server: mcp.McpServer, tool: mcp.ServedTool) -> McpToolChange:
    before = next((one for one in server.replaced if one.name == tool.name), None)
    return McpToolChange(
        **dict(_described_tool(server, tool)), replaces=before and _described_tool(server, before)
    )
